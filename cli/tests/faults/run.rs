//! Starts the executable and this test binary.

use std::env;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::RwLock;

/// Held exclusively while a process starts: until it calls `exec`, the child has this process's open files, and so its
/// locks. Code that checks a store holds it shared.
pub(crate) static STARTING: RwLock<()> = RwLock::new(());

pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_stridemap");

const ROLE: &str = "STRIDEMAP_TEST_ROLE";
const STORE: &str = "STRIDEMAP_TEST_STORE";

fn try_spawn(command: &mut Command) -> io::Result<Child> {
    crate::signals::reach_children();
    let _alone = STARTING.write().unwrap();
    command.spawn()
}

pub(crate) fn spawn(command: &mut Command) -> Child {
    try_spawn(command).unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Fails if the program cannot be started, as one that is not installed.
pub(crate) fn try_output(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    try_spawn(command)?.wait_with_output()
}

pub(crate) fn output(command: &mut Command) -> Output {
    try_output(command).unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Returns the executable with these arguments, to run in a directory.
pub(crate) fn stridemap(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(EXECUTABLE);
    command.args(args).current_dir(dir);
    command
}

/// Runs the executable, asserts that it succeeds, and returns its standard output.
#[track_caller]
pub(crate) fn succeed(dir: &Path, args: &[&str]) -> String {
    let output = output(&mut stridemap(dir, args));
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts that a command ended with exit code 2, one line on standard error and nothing on standard output. Returns
/// the line.
#[track_caller]
pub(crate) fn refused(output: &Output) -> String {
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(line.starts_with("stridemap: ") && line.lines().count() == 1, "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    line
}

/// Starts this binary to play a role on a store.
pub(crate) fn role(role: &str, path: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "other_process", "--nocapture"]).env(ROLE, role).env(STORE, path);
    command
}

pub(crate) fn has_role() -> bool {
    env::var_os(ROLE).is_some()
}

pub(crate) fn play() {
    let (role, path) = (env::var(ROLE).unwrap(), env::var(STORE).unwrap());
    let path = Path::new(&path);
    match role.split_once(' ') {
        Some(("commit", how)) => crate::script::play(how, path),
        None if role == "unmapped" => crate::limits::read_without_mapping(path),
        _ => panic!("no role {role}"),
    }
}

/// Prints that a test is skipped, and why. Fails if the variable requires the test.
pub(crate) fn skip(variable: &str, why: &str) {
    assert!(env::var_os(variable).is_none(), "{why}, and {variable} is set");
    println!("skipped: {why}");
}

/// Returns whether the process is root, which mounting requires.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("STRIDEMAP_REQUIRE_ROOT", "file systems are mounted by root only");
    }
    is_root
}

/// Returns the number in a variable that scales a test, or the default.
pub(crate) fn scaled(variable: &str, default: usize) -> usize {
    match env::var(variable) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")),
        Err(_) => default,
    }
}
