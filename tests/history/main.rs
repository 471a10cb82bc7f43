//! Histories made at random, on a simulated disk, against a model that keeps every tagged state whole; and the tables that
//! tags and readers need.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

#[path = "../common/files.rs"]
#[allow(dead_code, reason = "only the tests of reading use all of it")]
mod files;
mod model;
mod play;
#[path = "../common/random.rs"]
mod random;
mod replica;
#[allow(dead_code, unused_imports, reason = "only the crash tests use all of it")]
#[path = "../common/simulated/mod.rs"]
mod simulated;
mod tables;
