//! Tests of `stridemap-candle` through its public API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod convert;
mod example;
mod models;
