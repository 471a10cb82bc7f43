//! Kills, or fails, each command at each of its system calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::random::Random;
use crate::run::{output, scaled};
use crate::strace::{self, Fault};
use crate::template::{self, Content, assert_usable, content, matching_content};

/// A command, its arguments, and its store.
pub(crate) struct Subject {
    pub(crate) args: &'static [&'static str],
    pub(crate) store: &'static str,
    pub(crate) changes: Changes,
}

#[derive(PartialEq)]
pub(crate) enum Changes {
    /// Changes the store, or creates one.
    Something,
    /// Never changes anything.
    Nothing,
}

impl Subject {
    pub(crate) const fn writer(args: &'static [&'static str]) -> Self {
        Subject { args, store: "s.smap", changes: Changes::Something }
    }

    pub(crate) const fn reader(args: &'static [&'static str]) -> Self {
        Subject { args, store: "s.smap", changes: Changes::Nothing }
    }

    /// Returns the command with a store of another name.
    pub(crate) const fn of(self, store: &'static str) -> Self {
        Subject { store, ..self }
    }
}

/// Creates a temporary directory in memory if possible. Its file system is not under test, and its syncs cost nothing.
fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The result of a command without a fault, on a copy of the template.
struct Expected {
    template: TempDir,
    before: Content,
    after: Content,
    output: Output,
    trace: String,
}

impl Expected {
    fn of(subject: &Subject) -> Self {
        let template = temporary();
        template::make(template.path());
        let dir = temporary();
        copy(template.path(), dir.path());
        let (output, trace) = strace::run(dir.path(), subject.args, None);
        assert!(output.status.success(), "{output:?}");
        let before = content(&template.path().join(subject.store)).unwrap_or_default();
        let after = content(&dir.path().join(subject.store)).unwrap();
        Expected { template, before, after, output, trace }
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = output(Command::new("cp").arg("-rp").arg(from.join(".")).arg(to));
    assert!(copied.status.success(), "{copied:?}");
}

/// Tries faults, each on its own copy: all of them, or a random choice of `STRIDEMAP_TEST_FAULTS`.
fn try_each(
    subject: &Subject,
    of: impl Fn(&str) -> Vec<Fault>,
    check: impl Fn(&Expected, &Fault, &Output, &str, &Path),
) {
    if !strace::is_available() {
        return;
    }
    let expected = Expected::of(subject);
    let mut faults = of(&expected.trace);
    let total = faults.len();
    assert!(total > 0, "no call of {:?} was found in the trace:\n{}", subject.args, expected.trace);
    let wanted = scaled("STRIDEMAP_TEST_FAULTS", 12);
    let mut chance = Random::new(Random::seed(&subject.args.join(" ")));
    while faults.len() > wanted {
        faults.swap_remove(chance.below(faults.len()));
    }
    // A failure does not stop the others.
    let (mut wrong, mut tried_count) = (Vec::new(), 0);
    for fault in &faults {
        match catch_unwind(AssertUnwindSafe(|| try_one(subject, &expected, fault, &check))) {
            Ok(is_tried) => tried_count += usize::from(is_tried),
            Err(_) => wrong.push(fault.name()),
        }
    }
    assert!(wrong.is_empty(), "{} of {} faults: {wrong:#?}", wrong.len(), faults.len());
    assert!(tried_count * 10 >= faults.len() * 9, "only {tried_count} of {} faults", faults.len());
    println!("{}: {tried_count} of {total} faults", subject.args.join(" "));
}

/// Tries a fault. Returns false if no run came to its call.
fn try_one(
    subject: &Subject,
    expected: &Expected,
    fault: &Fault,
    check: impl Fn(&Expected, &Fault, &Output, &str, &Path),
) -> bool {
    let what = fault.name();
    // What the system says about a process differs between runs, and with it the number of calls. The run that was
    // counted may have had one more than any other.
    let mut runs = (0..5).map(|_| {
        let dir = temporary();
        copy(expected.template.path(), dir.path());
        let (output, trace) = strace::run(dir.path(), subject.args, Some(fault));
        let is_missed = fault.hit(&trace).is_none();
        assert!(!is_missed || !fault.is_reached(&trace), "{what}: was not injected: {output:?}\n{trace}");
        (!is_missed).then_some((dir, output, trace))
    });
    let Some((dir, output, trace)) = runs.find_map(|run| run) else {
        println!("{what}: no further run has this call");
        return false;
    };
    check(expected, fault, &output, &trace, dir.path());
    let path = dir.path().join(subject.store);
    // A store being created appears only when it is complete.
    if subject.store == "s.smap" || path.exists() {
        matching_content(&path, &[&expected.before, &expected.after], &what);
        assert_usable(dir.path(), subject.store, &what);
    }
    if subject.store != "s.smap" {
        let [before, after] = [expected.template.path(), dir.path()].map(|dir| dir.join("s.smap"));
        let compared = Command::new("diff").arg("-r").arg(&before).arg(&after).output().unwrap();
        assert!(compared.status.success(), "{what}: {compared:?}");
    }
    true
}

pub(crate) fn killed(subject: &Subject) {
    try_each(subject, strace::kills, |_, fault, output, _, _| {
        assert_eq!(output.status.code(), None, "{}: {output:?}", fault.name());
    });
}

pub(crate) fn failing(subject: &Subject) {
    try_each(subject, strace::errors, |expected, fault, output, trace, dir| {
        let what = format!("{}: {output:?}", fault.name());
        let path = dir.join(subject.store);
        let holds = |content: &Content| {
            matching_content(&path, &[content, &expected.before, &expected.after], &what) == 0
        };
        match output.status.code() {
            // Cleaning up may fail; the requested change has been made.
            Some(0) => {
                assert!(holds(&expected.after), "{what}: success, and nothing was done");
                assert!(!fault.is_sync(), "{what}: a failed sync was not reported");
                if subject.changes == Changes::Nothing {
                    assert_eq!(output.stdout, expected.output.stdout, "{what}");
                }
            }
            Some(2) => {
                let lines = String::from_utf8_lossy(&output.stderr).lines().count();
                assert!(fault.prints() && lines == 0 || lines == 1, "{what}: not one line");
                assert!(output.stderr.is_empty() || output.stderr.starts_with(b"stridemap: "), "{what}");
                let is_unknown =
                    String::from_utf8_lossy(&output.stderr).contains("may or may not have been published");
                let is_known = expected.before != expected.after && path.exists() && !fault.prints();
                if is_known && !is_unknown {
                    assert!(holds(&expected.before), "{what}: an error, and it was done");
                }
            }
            // Not 1, a finding: what could not be read is not damaged.
            _ => panic!("{what}"),
        }
        if fault.is_sync() {
            assert_not_synced_again(fault.hit(trace).unwrap_or_default(), trace, &what);
        }
    });
}

/// Checks that nothing is synced again after a failed sync: the kernel has dropped the data, so a second sync would
/// succeed.
fn assert_not_synced_again(failed: &str, trace: &str, what: &str) {
    let file = |line: &str| {
        line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(file, _)| file.to_owned())
    };
    let after = trace.lines().skip_while(|&line| line != failed).skip(1);
    let again: Vec<&str> =
        after.filter(|line| line.contains("sync(") && file(line) == file(failed)).collect();
    assert!(again.is_empty(), "{what}: synced again: {again:?}");
}

pub(crate) fn interrupted(subject: &Subject) {
    try_each(subject, strace::interruptions, |expected, fault, output, _, dir| {
        let what = format!("{}: {output:?}", fault.name());
        assert_eq!(output.status.code(), Some(0), "{what}");
        assert_eq!(
            (&output.stdout, &output.stderr),
            (&expected.output.stdout, &expected.output.stderr),
            "{what}"
        );
        matching_content(&dir.join(subject.store), &[&expected.after], &what);
    });
}
