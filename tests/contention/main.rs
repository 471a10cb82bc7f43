//! How long processes wait for each other, printed as p50, p99 and max. The other processes are this test binary,
//! started again.
//!
//! `STRIDEMAP_CONTENTION_SECONDS` sets how long each kind of lock is contended.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

#[allow(dead_code, reason = "these tests only count operations")]
#[path = "../common/hooked.rs"]
mod hooked;
mod latencies;
mod locks;
mod pins;
#[path = "../common/random.rs"]
mod random;
mod soak;
mod torn;
