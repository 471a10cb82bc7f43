//! How requests are made, and the handle to a remote that makes them.

use std::env;
use std::time::Duration;

use stridemap_remote::{Remote, RemoteOptions, Requests};

use crate::error::{Error, Result};
use crate::history::parse_duration;
use crate::interrupt;
use crate::ui::{counted, is_verbose, message};

/// The maximum number of requests at a time. Each takes memory.
const MAX_JOBS: usize = 256;

fn parse_jobs(text: &str) -> Result<usize, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=MAX_JOBS).contains(jobs));
    jobs.ok_or_else(|| format!("expected a whole number from 1 to {MAX_JOBS}"))
}

/// Parses a duration that is not zero.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be more than 0: 500ms, 60s, 5m".to_owned()),
        parsed => parsed.map_err(|_| "expected a number with a unit: 500ms, 60s, 5m".to_owned()),
    }
}

/// The variables that say how requests are made, and what is used without them.
const JOBS: (&str, &str) = ("STRIDEMAP_JOBS", "8");
const TIMEOUT: (&str, &str) = ("STRIDEMAP_TIMEOUT", "60s");

/// Returns the value of a variable.
fn variable<T>((name, default): (&str, &str), parse: fn(&str) -> Result<T, String>) -> Result<T> {
    let text = env::var_os(name).unwrap_or_else(|| default.into());
    let parsed = text.to_str().ok_or_else(|| "not UTF-8".to_owned()).and_then(parse);
    parsed.map_err(|why| Error::Refused(format!("the variable {name} is {text:?}: {why}")))
}

/// Opens a remote. This sends no request. From now on a signal ends a command that waits for a server.
pub(super) fn open(url: &str) -> Result<Remote> {
    interrupt::catch_signals();
    let (jobs, timeout) = (variable(JOBS, parse_jobs)?, variable(TIMEOUT, parse_timeout)?);
    Ok(RemoteOptions::new().jobs(jobs).timeout(timeout).check(interrupt::stop).open(url)?)
}

/// With `--verbose`, says how many requests were sent.
pub(super) fn report(remote: &Remote) {
    if is_verbose() {
        let Requests { get, head, put, delete, list, .. } = remote.requests();
        let kinds = [(get, "GET"), (head, "HEAD"), (put, "PUT"), (delete, "DELETE"), (list, "LIST")];
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
        let all = counted(remote.requests().total(), "request");
        message(&format!("note: {all}: {}", kinds.join(", ")));
    }
}

/// Returns the requests for JSON.
pub(super) fn record(remote: &Remote) -> serde_json::Value {
    let Requests { get, head, put, delete, list, sent_bytes, received_bytes, .. } = remote.requests();
    serde_json::json!({ "get": get, "head": head, "put": put, "delete": delete, "list": list,
        "sent_bytes": sent_bytes, "received_bytes": received_bytes })
}
