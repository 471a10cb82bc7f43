//! Tests of remotes, in memory and in directories.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod collection;
mod conflicts;
mod contract;
mod damage;
mod directories;
mod every_request;
mod faults;
mod followers;
mod history;
mod in_place;
mod jobs;
mod local_changes;
mod long_objects;
mod overtaken;
mod plans;
mod requests;
mod support;
mod transfers;
mod uploads;
