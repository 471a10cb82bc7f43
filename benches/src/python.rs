//! The libraries in Python: a process that runs peers.py, one function per request.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::Outcome;

const SCRIPT: &str = include_str!("../peers.py");

pub(crate) struct Python {
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    functions: BTreeSet<String>,
    pub(crate) versions: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Offer {
    functions: BTreeSet<String>,
    versions: BTreeMap<String, String>,
}

impl Python {
    pub(crate) fn start(python: &Path) -> Outcome<Self> {
        let mut process = Command::new(python)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("start {}: {e}", python.display()))?;
        let (Some(requests), Some(replies)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("peers.py has no pipes".into());
        };
        let mut python = Python {
            process,
            requests,
            replies: BufReader::new(replies),
            functions: BTreeSet::new(),
            versions: BTreeMap::new(),
        };
        let offer: Offer = serde_json::from_value(python.ask(&json!({ "list": true }))?)?;
        (python.functions, python.versions) = (offer.functions, offer.versions);
        Ok(python)
    }

    /// Returns whether the library of this function is installed.
    pub(crate) fn has(&self, function: &str) -> bool {
        self.functions.contains(function)
    }

    /// Calls a function of peers.py, and returns the duration of its timed part in seconds.
    /// `case` is the same for all calls of one case: what a function prepared is kept until another case begins.
    pub(crate) fn time(&mut self, case: usize, function: &str, arguments: &Value) -> Outcome<f64> {
        let reply = self.ask(&json!({ "case": case, "function": function, "arguments": arguments }))?;
        Ok(reply.as_f64().ok_or_else(|| format!("peers.py: {function}: {reply}"))?)
    }

    fn ask(&mut self, request: &Value) -> Outcome<Value> {
        writeln!(self.requests, "{request}")?;
        let mut reply = String::new();
        self.replies.read_line(&mut reply)?;
        serde_json::from_str(&reply).map_err(|e| format!("peers.py: {e}: {reply:?}").into())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
