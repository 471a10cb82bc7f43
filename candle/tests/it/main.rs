//! Tests of `stridemap-candle` through its public API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

mod convert;
mod example;
mod gguf;
mod models;
