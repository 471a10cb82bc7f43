//! `verify` and `repair`: damage to every file of a store, and what is found, and what is left.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod crash;
mod damage;
mod flips;
mod hostile;
mod partial;
mod repairs;
mod support;
