//! The crate, as a user sees it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod convert;
mod example;
mod models;
