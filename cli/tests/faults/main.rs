//! The real executable on real file systems that fail: at each system call, on full disks, under limits, on read-only
//! mounts, and in power cuts. A test that cannot run prints the reason, and fails if a variable requires it.
#![allow(clippy::unwrap_used, reason = "a failed test shows its location")]

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
#[path = "../../../tests/common/signals.rs"]
mod signals;
mod strace;
mod template;

use std::path::Path;

/// Plays the role of a started process. Without one, tests that a process that fails in its role is noticed.
#[test]
fn other_process() {
    if run::has_role() {
        return run::play();
    }
    let ended = run::role("none", Path::new("none")).output().unwrap();
    assert!(!ended.status.success(), "{ended:?}");
}
