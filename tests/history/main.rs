//! Histories made at random, on a simulated disk, against a model that keeps every tagged state whole; and the tables that
//! tags and readers need.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

mod model;
mod play;
#[path = "../common/random.rs"]
mod random;
#[allow(dead_code, unused_imports, reason = "only the crash tests use all of it")]
#[path = "../common/simulated/mod.rs"]
mod simulated;
mod tables;
