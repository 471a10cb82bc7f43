//! Other processes of the tests: this test binary, started again to play a role.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{env, fs};

const ROLE: &str = "STRIDEMAP_TEST_ROLE";
const STORE: &str = "STRIDEMAP_TEST_STORE";

/// Starts this binary to run a role on a store.
pub(crate) fn start(role: &str, path: &Path) -> Child {
    command(role, path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Returns the command that [`start`] runs.
pub(crate) fn command(role: &str, path: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "harness::processes::other_process", "--nocapture"])
        .env(ROLE, role)
        .env(STORE, path);
    command
}

/// Runs a role in a new process, and asserts that it succeeds.
pub(crate) fn run_to_end(role: &str, path: &Path) {
    let ended = start(role, path).wait().unwrap();
    assert!(ended.success(), "{role}: {ended}");
}

/// Returns the next line that the other process sends.
pub(crate) fn read_line(child: &mut impl BufRead) -> String {
    let mut line = String::new();
    while !line.starts_with("> ") {
        line.clear();
        assert_ne!(child.read_line(&mut line).unwrap(), 0, "the other process ended without a further line");
    }
    line[2..].trim_end().to_owned()
}

/// Sends a line to the process that started this one.
pub(crate) fn send_line(line: impl std::fmt::Display) {
    println!("\n> {line}");
    std::io::stdout().flush().unwrap();
}

/// Waits for a line from the process that started this one. Returns false at the end of the input.
pub(crate) fn wait_for_line() -> bool {
    std::io::stdin().read_line(&mut String::new()).unwrap() > 0
}

/// Returns a number from a file under `/proc/self`.
pub(crate) fn proc(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A started process that runs a role, and its output.
pub(crate) struct OtherProcess {
    pub(crate) child: Child,
    stdout: BufReader<ChildStdout>,
}

impl OtherProcess {
    pub(crate) fn start(role: &str, path: &Path) -> Self {
        let mut child = start(role, path);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        OtherProcess { child, stdout }
    }

    pub(crate) fn read_line(&mut self) -> String {
        read_line(&mut self.stdout)
    }

    /// Sends the line that the role waits for.
    pub(crate) fn resume(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
    }

    pub(crate) fn assert_success(mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Starts processes, waits until all are ready, and lets them continue together.
pub(crate) fn start_together(role: &str, path: &Path, count: usize) -> Vec<OtherProcess> {
    let mut players: Vec<OtherProcess> = (0..count).map(|_| OtherProcess::start(role, path)).collect();
    players.iter_mut().for_each(|player| assert_eq!(player.read_line(), "ready"));
    players.iter_mut().for_each(OtherProcess::resume);
    players
}

/// Plays the role of a started process. Without one, tests that a process that fails in its role is noticed.
#[test]
fn other_process() {
    let (Ok(role), Ok(path)) = (env::var(ROLE), env::var(STORE)) else {
        return assert!(!start("none", Path::new("none")).wait().unwrap().success());
    };
    let path = Path::new(&path);
    match role.as_str() {
        "sum" => return crate::sharing::memory::sum(path),
        role if role.starts_with("compact.") => return crate::compaction::concurrent::run_role(role, path),
        role if role.starts_with("appender") => return crate::growth::appender::run_role(role, path),
        role if role.starts_with("grow") => return crate::growth::processes::run_role(role, path),
        role if role.starts_with("live ") => return crate::live::run_role(role, path),
        role if role.starts_with("stress ") => return crate::stress::run_role(role, path),
        _ => (),
    }
    let roles = [
        crate::commit::conditions::run_role,
        crate::commit::deletions::run_role,
        crate::commit::reads::run_role,
        crate::commit::waiting::run_role,
        crate::compaction::bounds::run_role,
        crate::compaction::killed::run_role,
        crate::copies::concurrent::run_role,
        crate::faults::full_disk::run_role,
        crate::filesystems::copy_on_write::run_role,
        crate::filesystems::limits::run_role,
        crate::filesystems::overlay::run_role,
        crate::filesystems::replaced::run_role,
        crate::history::run_role,
        crate::mutable::interrupted::run_role,
        crate::mutable::warm_locks::run_role,
        crate::refusals::run_role,
        crate::sharing::forks::run_role,
        crate::sharing::hazards::run_role,
        crate::sharing::kept_files::run_role,
        crate::sharing::mappings::run_role,
        crate::sharing::processes::run_role,
        crate::sharing::threads::run_role,
        crate::views::indexing::run_role,
    ];
    let is_known = roles.iter().any(|run| run(&role, path));
    assert!(is_known, "no role {role}");
}

/// Kills this process from a hook, as a crash would.
pub(crate) fn die() -> ! {
    // SAFETY: a process may kill itself. Nothing that it owns is used afterwards.
    unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGKILL) };
    unreachable!("killed");
}
