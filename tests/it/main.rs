//! The library, as a user sees it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod arithmetic;
mod casts;
mod changes;
mod compact;
mod conditions;
mod conformance;
mod crash;
mod damage;
mod examples;
mod faults;
mod forks;
mod full_disk;
mod gather;
mod growth;
mod hazards;
mod hooked;
mod indexing;
mod inplace;
mod interop;
mod live;
mod print;
mod processes;
mod python;
mod queries;
mod refusals;
mod scale;
mod sharing;
mod store;
mod stress;
mod support;
mod surroundings;
mod transactions;
mod tutorials;
mod views;
mod waiting;
