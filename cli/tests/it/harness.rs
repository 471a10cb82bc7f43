//! A directory with a store, and helpers that run the executable there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use stridemap::{Store, Tensor};
use tempfile::TempDir;

use crate::signals;

/// A temporary directory. Commands run in it, so that their output contains no path of the machine.
pub(crate) struct Dir(TempDir);

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Dir {
    pub(crate) fn empty() -> Self {
        signals::reach_children();
        Dir(tempfile::tempdir().unwrap())
    }

    /// Creates a store with `points`, a float32 matrix of three rows, its transpose `points_t`, and a scalar with an
    /// unusual name.
    pub(crate) fn with_store() -> Self {
        let dir = Dir::empty();
        let store = Store::create(dir.path("s.smap")).unwrap();
        let mut txn = store.begin().unwrap();
        let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2]).unwrap();
        txn.save("points", &points).unwrap();
        txn.save("odd [name]", &Tensor::from_vec(vec![7i64], &[]).unwrap()).unwrap();
        let saved = txn.load("points").unwrap();
        txn.save_view("points_t", &saved.t().unwrap()).unwrap();
        txn.set_attribute("", "format", "pt").unwrap();
        txn.commit().unwrap();
        dir
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn store(&self) -> Store {
        Store::open(self.path("s.smap")).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Changes a bit of a file.
    pub(crate) fn flip(&self, name: &str, at: usize) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        bytes[at] ^= 1;
        self.write(name, &bytes);
    }

    /// Writes a safetensors file with this header.
    pub(crate) fn write_safetensors(&self, name: &str, header: &str, elements: &[u8]) {
        self.write(name, &[&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements].concat());
    }

    /// Writes an npy file in row-major order.
    pub(crate) fn write_npy(&self, name: &str, descr: &str, shape: &str, elements: &[u8]) {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let length = (header.len() as u16).to_le_bytes();
        self.write(name, &[b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), elements].concat());
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stridemap"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null()).env_remove("STRIDEMAP_COLUMNS");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().unwrap())
    }

    /// Runs a command, asserts that it succeeds without a message, and returns its standard output.
    pub(crate) fn stdout(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{args:?}: {run:?}");
        run.stdout
    }

    /// Runs a command with `--json`, and returns what it prints.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(&[args, &["--json"]].concat())).unwrap()
    }

    /// Runs a command as on a terminal of this width, asserts that it succeeds without a message, and returns its
    /// standard output.
    pub(crate) fn on_terminal(&self, width: usize, args: &[&str]) -> String {
        let output = self.command(args).env("STRIDEMAP_COLUMNS", width.to_string()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command, asserts that it succeeds without output, and returns its messages.
    pub(crate) fn messages(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{args:?}: {run:?}");
        run.stderr
    }

    /// Runs a command, and asserts that it is refused with one line, prints nothing and changes nothing. Returns the
    /// line, and the expression with its marker if they follow.
    pub(crate) fn refusal(&self, args: &[&str]) -> String {
        let before = self.content();
        let run = self.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}: {run:?}");
        assert_eq!(self.content(), before, "{args:?} left something behind");
        let mut lines = run.stderr.split_terminator('\n');
        let line = lines.next().and_then(|line| line.strip_prefix("stridemap: ")).map(str::to_owned);
        let is_mark = |line: &str| {
            line.strip_prefix("  | ").is_some_and(|mark| mark.trim().trim_matches('^').is_empty())
        };
        let marked: Vec<&str> = lines.collect();
        assert!(
            matches!(marked[..], []) || matches!(marked[..], [_, mark] if is_mark(mark)),
            "{args:?}: {run:?}"
        );
        line.unwrap_or_else(|| panic!("{args:?}: not one line: {run:?}"))
    }

    /// Returns the complete error output of `show` and `view` for an expression that both refuse.
    pub(crate) fn stderr_of_a_refusal(&self, expr: &str) -> String {
        self.refusal(&["view", "s.smap", expr, "new"]);
        self.refusal(&["show", "s.smap", expr]);
        self.run(&["show", "s.smap", expr]).stderr
    }

    /// Returns the content of the store, and the files beside it.
    fn content(&self) -> (Option<Value>, Vec<PathBuf>) {
        let is_store = self.path("s.smap").exists();
        let inspected = is_store.then(|| self.json(&["info", "--all", "s.smap"]));
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        (inspected, files)
    }
}

/// Returns the JSON objects of a text, one per line.
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns a name in the quotes of an expression.
pub(crate) fn quoted(name: &str) -> String {
    format!("'{}'", name.replace('\\', r"\\").replace('\'', r"\'"))
}

/// Longer than any command of a test takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Kills a process that has not ended in time, so that a test that waits for it fails and does not hang. Must be
/// dropped when the process has been waited for.
pub(crate) struct Deadline {
    _ended: mpsc::Sender<()>,
}

impl Deadline {
    pub(crate) fn of(child: &Child) -> Self {
        let (sender, ended) = mpsc::channel::<()>();
        let id = child.id().to_string();
        thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &id]).status();
            }
        });
        Deadline { _ended: sender }
    }
}

/// Returns every path below a directory, and the content of each file.
pub(crate) fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.append(&mut tree(&path));
            found.insert(path, None);
        } else {
            let content = fs::read(&path).unwrap();
            found.insert(path, Some(content));
        }
    }
    found
}
