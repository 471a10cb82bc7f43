//! Power cuts on a simulated disk. Whatever unsynced data survives, the store holds the last acknowledged commit or
//! the one in progress, and can be used again.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

mod content;
mod exhaustive;
mod explore;
#[allow(dead_code, reason = "these tests count nothing")]
#[path = "../common/hooked.rs"]
mod hooked;
#[path = "../common/random.rs"]
mod random;
mod recover;
mod replaced;
mod script;
mod scripts;
mod seeded;
#[allow(dead_code, reason = "only the tests of faults make operations fail")]
#[path = "../common/simulated/mod.rs"]
mod simulated;
mod steps;
mod swapped;

/// Returns the number in an environment variable that scales a test, if it is set.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// Creates a directory that is deleted at the end of the test.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
