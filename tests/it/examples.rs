//! The examples, run as a user would. Each starts its own processes and checks their results.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use crate::support::temporary;

/// Returns the example with this name, built from the current source. Cargo builds the examples with the tests, but
/// not if only some tests were requested. They are then built here, with the same profile and target directory.
fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<()> = Mutex::new(());
    // <target>/<profile>/deps/it-<hash>
    let test = env::current_exe().unwrap();
    let profile_dir = test.ancestors().nth(2).unwrap();
    let example = profile_dir.join("examples").join(name);
    let _built = BUILT.lock().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["Cargo.lock", "src", "format/src", "examples"].map(|part| changed(&source.join(part)));
    let built = fs::metadata(&example).and_then(|built| built.modified());
    if !built.is_ok_and(|built| sources.iter().all(|changed| *changed <= built)) {
        let profile = match profile_dir.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "stridemap", "--example", name, "--profile", profile]);
        cargo.arg("--target-dir").arg(profile_dir.parent().unwrap()).current_dir(source);
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
    }
    example
}

/// Returns the time of the last change to a file, or to any file in a directory.
fn changed(path: &Path) -> SystemTime {
    if path.is_dir() {
        let inside = fs::read_dir(path).unwrap().map(|entry| changed(&entry.unwrap().path()));
        return inside.max().unwrap_or(SystemTime::UNIX_EPOCH);
    }
    fs::metadata(path).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A running example and the processes that it started. They are killed together when this is dropped.
struct Running {
    process: Child,
    dir: tempfile::TempDir,
}

/// Longer than any example takes. An example that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);

impl Running {
    fn start(name: &str) -> Self {
        let (example, dir) = (example(name), temporary());
        // Output goes to files, because a pipe ends only with the last process that holds it.
        let [stdout, stderr] = ["stdout", "stderr"].map(|said| File::create(dir.path().join(said)).unwrap());
        let process = Command::new(&example).process_group(0).stdout(stdout).stderr(stderr).spawn();
        Running { process: process.unwrap_or_else(|e| panic!("{}: {e}", example.display())), dir }
    }

    /// Returns the output on both streams.
    fn output(&self) -> [String; 2] {
        ["stdout", "stderr"].map(|said| fs::read_to_string(self.dir.path().join(said)).unwrap())
    }

    /// Waits for the end. Returns the status and the output.
    fn end(mut self) -> (ExitStatus, [String; 2]) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return (status, self.output());
            }
            assert!(began.elapsed() < PATIENCE, "it hangs; its output so far: {:?}", self.output());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the running processes that it has started.
    fn children(&self) -> Vec<libc::pid_t> {
        let parent = format!("PPid:\t{}\n", self.process.id());
        let is_child = |id: &libc::pid_t| {
            // A process that has ended since has no status.
            fs::read_to_string(format!("/proc/{id}/status")).is_ok_and(|status| status.contains(&parent))
        };
        let ids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        ids.filter(is_child).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: sends a signal to a process group that was created only for this process.
        unsafe { libc::kill(-(self.process.id() as libc::pid_t), libc::SIGKILL) };
        let _ = self.process.wait();
    }
}

/// Runs an example, and kills the first process that it starts, if found in time.
fn kill_a_child_of(name: &str) -> (ExitStatus, [String; 2]) {
    let mut running = Running::start(name);
    while running.process.try_wait().unwrap().is_none() {
        if let Some(child) = running.children().pop() {
            // SAFETY: sends a signal.
            unsafe { libc::kill(child, libc::SIGKILL) };
            break;
        }
    }
    running.end()
}

/// Runs an example that succeeds. Returns its output.
fn run(name: &str) -> String {
    let (status, [said, complaint]) = Running::start(name).end();
    assert!(status.success(), "{said}{complaint}");
    print!("{said}");
    said
}

#[test]
fn quickstart_reads_its_views_in_a_second_process() {
    assert!(run("quickstart").contains("over 24 bytes of data"));
}

#[test]
fn hogwild_finds_the_truth_without_locks() {
    let said = run("hogwild");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("4 processes: loss"), "{said}");
}

#[test]
fn replay_buffer_returns_whole_transitions() {
    let said = run("replay_buffer");
    assert!(said.contains("the ring holds the last 256 of 90000"), "{said}");
}

#[test]
fn replay_buffer_that_loses_an_actor_reports_it() {
    // If the actor is found too late, it may have ended by itself, and the example may succeed.
    let lost = (0..20).map(|_| kill_a_child_of("replay_buffer")).find(|(status, _)| !status.success());
    let (_, [_, complaint]) = lost.expect("an actor that can be killed");
    assert!(complaint.contains("failed (signal: 9 (SIGKILL)): the others are ended"), "{complaint}");
}

#[test]
fn tied_weights_are_one_storage_in_every_process() {
    let said = run("tied_weights");
    assert!(said.contains("with the head, both ways:    1296641 bytes of data"), "{said}");
    assert!(said.ends_with("the first process sees the change in the embedding: [7, 0] is 0.25\n"), "{said}");
}

#[test]
fn consumers_of_shared_batches_see_all_rows() {
    let said = run("share_between_processes");
    assert_eq!(said.matches("consumer saw all 10240 rows").count(), 3, "{said}");
}
