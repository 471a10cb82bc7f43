//! `log --follow`: its output for commits by other processes, and how it ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use stridemap::Tensor;

use crate::harness::{Deadline, Dir};

/// A running `watch` process.
pub(crate) struct Watcher {
    /// The generation from which it watches.
    pub(crate) from: u64,
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    _deadline: Deadline,
}

impl Watcher {
    pub(crate) fn start(dir: &Dir, args: &[&str]) -> Self {
        let args: Vec<&str> = ["log", "s.smap", "--follow"].into_iter().chain(args.iter().copied()).collect();
        let mut child = dir.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let _deadline = Deadline::of(&child);
        let mut watcher = Watcher { from: 0, child, stdout, stderr, _deadline };
        let mut begun = String::new();
        watcher.stderr.read_line(&mut begun).unwrap();
        let from = begun.strip_prefix("stridemap: watching s.smap from generation ").unwrap();
        watcher.from = from.trim_end().parse().unwrap();
        watcher
    }

    /// Returns the next line. The time, which every line has in its second column, is checked and left out.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        if line.starts_with('{') {
            return line;
        }
        let (generation, rest) = line.split_once('\t').unwrap();
        let (time, rest) = rest.split_at("2026-01-31T12:00:00.000000000Z".len());
        assert!(is_recent(time), "{line}");
        format!("{generation}{rest}")
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("sh").args(["-c", &format!("kill -s {name} {id}")]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end, and returns the exit code and the remaining output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

/// Whether a text is a time of the last minutes, in UTC with nine digits after the second.
fn is_recent(text: &str) -> bool {
    let date = Command::new("date").args(["-d", text, "+%s"]).output().unwrap();
    let seconds: u64 = String::from_utf8(date.stdout).unwrap().trim().parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    text.ends_with('Z') && text.contains('.') && now.abs_diff(seconds) < 600
}

#[test]
fn watch_counts_names_and_prints_all_if_it_is_verbose() {
    let dir = Dir::with_store();
    let [mut short, mut long] =
        [&["--count", "1"][..], &["--count", "1", "-v"]].map(|args| Watcher::start(&dir, args));
    let save = |txn: &mut stridemap::Transaction<'_>| {
        ["a", "b", "c", "d"].iter().try_for_each(|name| txn.save(name, &Tensor::from_vec(vec![1f32], &[1])?))
    };
    dir.store().write(save).unwrap();
    assert_eq!(short.line(), "3\t+4 a, b, c, ...\n");
    assert_eq!(long.line(), "3\t+4 a, b, c, d\n");
}

#[test]
fn watch_prints_a_line_for_each_commit() {
    let dir = Dir::with_store();
    let mut watcher = Watcher::start(&dir, &["--count", "3"]);
    dir.messages(&["view", "s.smap", "points", "tab\there"]);
    assert_eq!(watcher.line(), "3\t+1 'tab\\there'\n");
    let store = dir.store();
    let mut txn = store.begin().unwrap();
    txn.remove("odd [name]").unwrap();
    txn.rename("points_t", "moved").unwrap();
    txn.save("points", &Tensor::from_vec(vec![1f32], &[1]).unwrap()).unwrap();
    txn.commit().unwrap();
    assert_eq!(watcher.line(), "4\t+1 moved\t~1 points\t-2 'odd [name]', points_t\n");
    let mut txn = store.begin().unwrap();
    txn.set_attribute("", "key", "value").unwrap();
    txn.commit().unwrap();
    assert_eq!(watcher.line(), "5\n");
    assert_eq!(watcher.end(), (Some(0), String::new()));
}

#[test]
fn watch_prints_json_objects() {
    let dir = Dir::with_store();
    let mut watcher = Watcher::start(&dir, &["--json", "--count", "1"]);
    dir.messages(&["mv", "s.smap", "points", "xy"]);
    let mut line: Value = serde_json::from_str(&watcher.line()).unwrap();
    let time = line.as_object_mut().unwrap().shift_remove("time").unwrap();
    assert!(is_recent(time.as_str().unwrap()), "{time}");
    let expected = json!({"v": 1, "generation": 3, "since": 2, "added": ["xy"], "changed": [], "removed": ["points"], "tagged": {},
            "untagged": []});
    assert_eq!(line, expected);
    assert_eq!(watcher.end(), (Some(0), String::new()));
}

#[test]
fn watch_says_when_tags_are_made_moved_and_removed() {
    let dir = Dir::with_store();
    let [mut text, mut json] =
        [&["--count", "4"][..], &["--count", "4", "--json"]].map(|args| Watcher::start(&dir, args));
    for (args, line, tagged, untagged) in [
        (&["tag", "s.smap", "v1"][..], "3\ttagged v1 (2)\n", json!({ "v1": 2 }), json!([])),
        (
            &["view", "s.smap", "points", "a", "--tag", "a b"],
            "4\t+1 a\ttagged 'a b' (3)\n",
            json!({ "a b": 3 }),
            json!([]),
        ),
        (&["tag", "s.smap", "v1", "--force"], "5\ttagged v1 (4)\n", json!({ "v1": 4 }), json!([])),
        (&["tag", "-d", "s.smap", "a b"], "6\tuntagged 'a b'\n", json!({}), json!(["a b"])),
    ] {
        dir.messages(args);
        assert_eq!(text.line(), line);
        let record: Value = serde_json::from_str(&json.line()).unwrap();
        assert_eq!((&record["tagged"], &record["untagged"]), (&tagged, &untagged));
    }
}

#[test]
fn commits_while_watch_is_stopped_are_reported_together() {
    let dir = Dir::with_store();
    let mut watcher = Watcher::start(&dir, &["--count", "1"]);
    watcher.signal("STOP");
    for name in ["a", "b", "c"] {
        dir.messages(&["view", "s.smap", "points", name]);
    }
    dir.messages(&["rm", "s.smap", "b"]);
    watcher.signal("CONT");
    assert_eq!(watcher.line(), "6 since 2\t+2 a, c\n");
    assert_eq!(watcher.end(), (Some(0), String::new()));
}

#[test]
fn watch_exits_with_0_at_a_signal() {
    for signal in ["INT", "TERM"] {
        let dir = Dir::with_store();
        let mut watcher = Watcher::start(&dir, &[]);
        dir.messages(&["view", "s.smap", "points", "a"]);
        assert_eq!(watcher.line(), "3\t+1 a\n");
        watcher.signal(signal);
        assert_eq!(watcher.end(), (Some(0), String::new()), "{signal}");
    }
}

#[test]
fn watch_exits_with_0_when_its_output_is_closed() {
    let dir = Dir::with_store();
    let Watcher { mut child, stdout, mut stderr, _deadline, .. } = Watcher::start(&dir, &[]);
    drop(stdout);
    let mut messages = String::new();
    stderr.read_to_string(&mut messages).unwrap();
    assert_eq!((child.wait().unwrap().code(), messages.as_str()), (Some(0), ""));
}

#[test]
fn watch_follows_a_store_that_is_renamed_and_ends_when_it_is_deleted() {
    let dir = Dir::with_store();
    let mut watcher = Watcher::start(&dir, &[]);
    fs::rename(dir.path("s.smap"), dir.path("elsewhere")).unwrap();
    dir.messages(&["view", "elsewhere", "points", "again"]);
    assert_eq!(watcher.line(), "3\t+1 again\n");
    fs::remove_dir_all(dir.path("elsewhere")).unwrap();
    let (code, message) = watcher.end();
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("the store was deleted or replaced"), "{message}");
}
