//! Power cuts, on a simulated disk: whatever survives of what was not synced, the store holds the last commit that was
//! acknowledged, or the one under way, and goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod content;
mod exhaustive;
mod explore;
#[path = "../common/random.rs"]
mod random;
mod recover;
mod replaced;
mod script;
mod scripts;
mod seeded;
mod steps;
mod swapped;

/// The value of an environment variable that scales a test, if it is set.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// A directory that goes when the test ends.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
