//! How requests are made, and the handle to a remote that makes them.

use std::time::Duration;

use clap::Parser as _;
use stridemap_remote::{Remote, RemoteOptions, Requests};

use crate::error::{Error, Result};
use crate::history::parse_duration;
use crate::interrupt;
use crate::ui::{counted, is_verbose, message};

#[derive(clap::Args)]
pub(crate) struct RequestArgs {
    /// How many requests run at a time; each takes up to 64 MiB of memory
    #[arg(long, value_name = "N", default_value = "8", env = "STRIDEMAP_JOBS", value_parser = parse_jobs)]
    jobs: usize,
    /// How long a request that fails is repeated: 60s, 5m
    #[arg(long, value_name = "DURATION", default_value = "60s", env = "STRIDEMAP_TIMEOUT", value_parser = parse_timeout)]
    timeout: Duration,
}

/// The maximum number of requests at a time. Each takes memory.
const MAX_JOBS: usize = 256;

fn parse_jobs(text: &str) -> Result<usize, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=MAX_JOBS).contains(jobs));
    jobs.ok_or_else(|| format!("expected a whole number from 1 to {MAX_JOBS}"))
}

/// Parses a duration that is not zero.
pub(super) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be more than 0: 500ms, 60s, 5m".to_owned()),
        parsed => parsed.map_err(|_| "expected a number with a unit: 500ms, 60s, 5m".to_owned()),
    }
}

/// For commands that have no options about requests: only the variables count.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct Environment {
    #[command(flatten)]
    requests: RequestArgs,
}

impl RequestArgs {
    /// Returns what the variables of the environment set.
    pub(super) fn of_environment() -> Result<Self> {
        let parsed = Environment::try_parse_from([""; 0]);
        let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
        let parsed = parsed.map_err(|e| Error::Refused(first_line(e.to_string())))?;
        Ok(parsed.requests)
    }

    /// Opens a remote. This sends no request. From now on a signal ends a command that waits for a server.
    pub(super) fn open(&self, url: &str) -> Result<Remote> {
        interrupt::catch_signals();
        let options = RemoteOptions::new().jobs(self.jobs).timeout(self.timeout).check(interrupt::stop);
        let remote = options.open(url)?;
        if remote.location().starts_with("memory://") {
            let why = "this is memory of one process, and a command ends; use a directory, file:///path";
            return Err(Error::Refused(format!("{}: {why}", remote.location())));
        }
        Ok(remote)
    }
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
