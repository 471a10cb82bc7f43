//! Power cuts, on a simulated disk: whatever survives of what was not synced, the store holds the last commit that was
//! acknowledged, or the one under way, and goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod content;
mod exhaustive;
mod explore;
mod random;
mod recover;
mod script;
mod scripts;
mod seeded;
mod steps;

/// A directory that goes when the test ends.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
