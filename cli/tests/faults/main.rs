//! The real executable on real file systems that fail: at each system call, on full disks, under limits, where nothing may be
//! written, and when the power goes. What cannot be tried here says so in one line, unless a variable requires it.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod commands;
mod full_disk;
mod injected;
mod limits;
mod power_cut;
#[path = "../../../tests/common/random.rs"]
mod random;
mod read_only;
mod run;
mod script;
mod strace;
mod template;

/// Not a test: what this binary does when a test has started it again.
#[test]
fn other_process() {
    run::play();
}
