//! The system calls that a role makes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use stridemap::disk::{Disk as _, RealDisk};

use super::processes::command;

/// Marks a place in the trace of this process.
pub(crate) fn mark(name: &str) {
    assert!(fs::metadata(format!("/{name}")).is_err());
}

/// Whether only this kernel changes the file system of a store. On others, less is kept.
pub(crate) fn is_local(store: &Path) -> bool {
    let is_local = !RealDisk::default().may_be_remote(store.parent().unwrap());
    if !is_local {
        println!("skipped: {} is not on a local file system", store.display());
    }
    is_local
}

/// The system calls of the thread that plays a role.
pub(crate) struct Trace(Vec<String>);

impl Trace {
    /// Returns the calls between two marks.
    pub(crate) fn between(&self, from: &str, to: &str) -> &[String] {
        let [from, to] = [from, to].map(|name| {
            let is_mark =
                |call: &String| call.starts_with("statx(") && call.contains(&format!("\"/{name}\""));
            self.0.iter().position(is_mark).unwrap()
        });
        &self.0[from + 1..to]
    }
}

/// Runs a role under strace. The role makes a [`mark`] of this name. Returns `None` if strace is not installed, or may not
/// trace, which is no failure unless the tests require it.
pub(crate) fn trace(role: &str, path: &Path, name: &str) -> Option<Trace> {
    let tried = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("skipped: strace is not installed, or may not trace");
        assert!(std::env::var_os("STRIDEMAP_REQUIRE_STRACE").is_none(), "strace is required");
        return None;
    }
    let traces = tempfile::tempdir().unwrap();
    let role = command(role, path);
    let mut traced = Command::new("strace");
    // A file for each thread: those of the test harness may make calls at any moment.
    traced
        .args(["-ff", "-qq", "-o"])
        .arg(traces.path().join("of"))
        .arg(role.get_program())
        .args(role.get_args());
    traced.envs(role.get_envs().filter_map(|(key, value)| Some((key, value?))));
    assert!(traced.stdout(Stdio::null()).status().unwrap().success());
    let mut all =
        fs::read_dir(traces.path()).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let trace = all.find(|trace| trace.contains(&format!("\"/{name}\""))).unwrap();
    Some(Trace(trace.lines().map(str::to_owned).collect()))
}
