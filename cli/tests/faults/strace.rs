//! Counts system calls, and makes them fail, with strace.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::run::{EXECUTABLE, output, skip, try_output};

/// The traced calls. `sigaltstack` is the last call of Rust's runtime before `main`.
const SEEN: &str = "openat,read,pread64,write,pwrite64,fallocate,ftruncate,fsync,fdatasync,syncfs,rename,renameat,\
                    renameat2,link,unlink,unlinkat,rmdir,flock,fcntl,ioctl,mmap,mkdir,statx,fstat,newfstatat,fstatfs,\
                    getdents64,sigaltstack";

/// The calls at which a kill can leave a different state than at the call before.
const KILLED_AT: &str = "openat write pwrite64 fallocate ftruncate fsync fdatasync syncfs rename renameat renameat2 unlink \
                         unlinkat rmdir flock mmap mkdir";

/// A fault in one call of a program.
pub(crate) struct Fault {
    call: String,
    /// The position of the call among calls of its name, from 1.
    when: usize,
    /// The injection, in the syntax of strace: `error=EIO`.
    pub(crate) how: &'static str,
    /// The line of the trace without a fault.
    line: String,
}

impl Fault {
    pub(crate) fn name(&self) -> String {
        format!("{} at {} {}: {}", self.how, self.call, self.when, self.line)
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.call.contains("sync")
    }

    /// Returns whether the call prints a message or the output of the command.
    pub(crate) fn prints(&self) -> bool {
        self.call == "write"
    }

    /// Returns whether the run of a trace came to the call.
    pub(crate) fn is_reached(&self, trace: &str) -> bool {
        let main = trace.split_whitespace().next().unwrap_or_default();
        let is_call = |line: &&str| {
            line.strip_prefix(main)
                .is_some_and(|line| line.trim_start().starts_with(&format!("{}(", self.call)))
        };
        trace.lines().filter(is_call).count() >= self.when
    }

    /// Returns the line of the trace where the fault was injected, or `""` for a kill.
    pub(crate) fn hit<'a>(&self, trace: &'a str) -> Option<&'a str> {
        let call = format!(" {}(", self.call);
        if self.how.starts_with("signal") {
            return trace.contains("+++ killed by SIGKILL").then_some("");
        }
        trace.lines().find(|line| line.contains(&call) && line.ends_with("(INJECTED)"))
    }
}

/// Returns whether strace is installed and permitted. If not, prints that once.
pub(crate) fn is_available() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| {
        let is_available = try_output(Command::new("strace").args(["-o", "/dev/null", "true"]))
            .is_ok_and(|tried| tried.status.success());
        if !is_available {
            skip("STRIDEMAP_REQUIRE_STRACE", "strace is not installed, or may not trace");
        }
        is_available
    })
}

/// Runs the executable under strace, with a fault or without. Returns the exit status and the trace.
pub(crate) fn run(dir: &Path, args: &[&str], fault: Option<&Fault>) -> (Output, String) {
    let trace = dir.join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-y", "-s", "0", "-o"]).arg(&trace).args(["-e", &format!("trace={SEEN}")]);
    if let Some(Fault { call, how, when, .. }) = fault {
        command.args(["-e", &format!("inject={call}:{how}:when={when}")]);
    }
    let output = output(command.arg(EXECUTABLE).args(args).current_dir(dir));
    (output, joined(&String::from_utf8(fs::read(trace).unwrap()).unwrap()))
}

/// Returns the trace with one line for each call. strace divides a call if a different thread makes one before its end.
fn joined(trace: &str) -> String {
    let (mut begun, mut lines) = (BTreeMap::new(), Vec::new());
    for line in trace.lines() {
        let (thread, event) = line.split_once(' ').unwrap_or_default();
        let end = event.trim_start().strip_prefix("<... ").and_then(|event| event.split_once(" resumed>"));
        if let Some(begin) = line.strip_suffix(" <unfinished ...>") {
            begun.insert(thread, begin);
        } else if let Some((begin, (_, end))) = begun.get(thread).zip(end) {
            lines.push(format!("{begin}{end}"));
            begun.remove(thread);
        } else {
            lines.push(line.to_owned());
        }
    }
    // The process ended during these calls.
    lines.extend(begun.into_values().map(str::to_owned));
    lines.join("\n")
}

#[test]
fn call_that_a_different_thread_divides_is_one_line() {
    let trace = "10    openat(AT_FDCWD</>, \"a\" <unfinished ...>\n\
                 101   fsync(3</b> <unfinished ...>\n\
                 10    <... openat resumed>) = 4</proc/a>\n\
                 101   <... fsync resumed>) = -1 EIO (Input/output error) (INJECTED)\n\
                 101   fsync(3</b>) = 0\n\
                 10    read(4</proc/a> <unfinished ...>\n\
                 101   +++ killed by SIGKILL +++";
    let lines = "10    openat(AT_FDCWD</>, \"a\") = 4</proc/a>\n\
                 101   fsync(3</b>) = -1 EIO (Input/output error) (INJECTED)\n\
                 101   fsync(3</b>) = 0\n\
                 101   +++ killed by SIGKILL +++\n\
                 10    read(4</proc/a>";
    assert_eq!(joined(trace), lines);
}

/// Returns each call of a trace after the start of the program: its name, its position among calls of that name, and
/// its line.
fn calls(trace: &str) -> Vec<(String, usize, String)> {
    let main = trace.split_whitespace().next().unwrap_or_default();
    let mut counts = BTreeMap::new();
    let mut calls = Vec::new();
    let mut has_begun = false;
    for line in trace.lines() {
        let Some((call, _)) = line.strip_prefix(main).and_then(|line| line.trim_start().split_once('('))
        else {
            continue;
        };
        if call.contains(' ') || call.contains('+') {
            continue;
        }
        let count = counts.entry(call.to_owned()).or_insert(0);
        *count += 1;
        has_begun |= call == "sigaltstack" && !line.contains("sigaltstack(NULL");
        // The amount of text about other processes differs between runs, and so may the number of these reads.
        if has_begun && !line.contains("</proc/") && !line.contains("</sys/") {
            calls.push((
                call.to_owned(),
                *count,
                line.strip_prefix(main).unwrap_or_default().trim().to_owned(),
            ));
        }
    }
    calls
}

fn fault((call, when, line): &(String, usize, String), how: &'static str) -> Fault {
    Fault { call: call.clone(), when: *when, how, line: line.clone() }
}

/// Returns a kill at each call.
pub(crate) fn kills(trace: &str) -> Vec<Fault> {
    let is_worth = |call: &str| KILLED_AT.split(' ').any(|known| known == call);
    calls(trace).iter().filter(|(call, ..)| is_worth(call)).map(|call| fault(call, "signal=KILL")).collect()
}

/// Returns every possible error of every call.
pub(crate) fn errors(trace: &str) -> Vec<Fault> {
    let errors = |call: &str, line: &str| -> &[&'static str] {
        match call {
            "openat" if line.contains("O_CREAT") => {
                &["error=EIO", "error=ENOSPC", "error=EMFILE", "error=ENFILE"]
            }
            "openat" => &["error=EIO", "error=EMFILE", "error=ENFILE", "error=EACCES", "error=ENOMEM"],
            "write" | "pwrite64" | "fallocate" | "fsync" | "fdatasync" | "mkdir" | "link" => {
                &["error=EIO", "error=ENOSPC"]
            }
            "rename" | "renameat" | "renameat2" => {
                &["error=EIO", "error=ENOSPC", "error=EACCES", "error=EDQUOT", "error=EINVAL"]
            }
            "read" | "pread64" | "statx" | "fstat" | "newfstatat" | "getdents64" => {
                &["error=EIO", "error=ENOMEM"]
            }
            "ftruncate" | "syncfs" | "unlink" | "unlinkat" | "rmdir" | "fcntl" | "ioctl" | "fstatfs" => {
                &["error=EIO"]
            }
            "flock" => &["error=ENOLCK", "error=EIO"],
            "mmap" => &["error=ENOMEM"],
            _ => &[],
        }
    };
    let calls = calls(trace);
    calls.iter().flat_map(|call| errors(&call.0, &call.2).iter().map(|how| fault(call, how))).collect()
}

/// Returns an interruption of each call that a signal can interrupt. Opening and listing directories never waits.
pub(crate) fn interruptions(trace: &str) -> Vec<Fault> {
    let is_worth = |call: &str, line: &str| match call {
        "openat" => !line.contains("O_DIRECTORY"),
        "read" | "pread64" | "write" | "pwrite64" | "fallocate" | "ftruncate" | "fsync" => true,
        _ => false,
    };
    calls(trace)
        .iter()
        .filter(|(call, _, line)| is_worth(call, line))
        .map(|call| fault(call, "error=EINTR"))
        .collect()
}
