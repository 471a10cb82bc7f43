//! `prune URL`: deletes objects that nobody needs any more.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use indicatif::HumanBytes;
use serde_json::json;
use stridemap_remote::{PruneOptions, Pruned};

use super::requests::{self, RequestArgs};
use super::url::check_untagged_url;
use crate::error::{Error, Result};
use crate::history::parse_duration;
use crate::ui::{counted, message, write_json};

// The options of prune that are for a URL.
#[derive(clap::Args)]
pub(crate) struct RemoteArgs {
    /// For a URL: how long to keep what a push has replaced, for those who still read it; 24h if not given
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = parse_duration)]
    grace: Option<Duration>,
    /// For a URL: also delete objects that killed pushes left; lists all objects
    #[arg(long)]
    orphans: bool,
    /// For a URL: print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    requests: RequestArgs,
}

impl RemoteArgs {
    /// Refuses these options for a store on this machine.
    pub(crate) fn check_unused(&self, store: &Path) -> Result<()> {
        let given = [(self.grace.is_some(), "--grace"), (self.orphans, "--orphans"), (self.json, "--json")];
        match given.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, flag)) => Err(Error::at("prune", store, format!("{flag} is for a URL"))),
            None => Ok(()),
        }
    }

    /// Prunes a remote.
    pub(crate) fn run(
        &self,
        url: &Path,
        keep_last: Option<u64>,
        is_dry_run: bool,
        out: &mut impl Write,
    ) -> Result<()> {
        check_untagged_url(url)?;
        let remote = self.requests.open(&url.to_string_lossy())?;
        let mut options = PruneOptions::new().orphans(self.orphans).plan(is_dry_run);
        if let Some(count) = keep_last {
            options = options.keep_last(usize::try_from(count).unwrap_or(usize::MAX));
        }
        if let Some(grace) = self.grace {
            options = options.grace(grace);
        }
        let pruned = remote.prune(&options)?;
        let Pruned { object_count, freed_bytes, waiting_count, waiting_bytes, generation_count, .. } = pruned;
        if self.json {
            let record = json!({ "url": remote.location(), "is_dry_run": is_dry_run, "objects": object_count,
                "freed_bytes": freed_bytes, "waiting_objects": waiting_count, "waiting_bytes": waiting_bytes,
                "generations": generation_count, "requests": requests::record(&remote) });
            write_json(out, record)?;
        }
        let (objects, freed) = (counted(object_count, "object"), HumanBytes(freed_bytes));
        let generations = counted(generation_count, "generation");
        let location = remote.location();
        match (is_dry_run, object_count) {
            (true, _) if self.json => {}
            (true, _) => {
                writeln!(out, "would delete {objects} of {location}, {freed}, and keep {generations}")?
            }
            (false, 0) => message(&format!("nothing to prune at {location}, which keeps {generations}")),
            (false, _) => {
                message(&format!("deleted {objects} of {location}, {freed}; it keeps {generations}"))
            }
        }
        if waiting_count > 0 {
            let (objects, bytes) = (counted(waiting_count, "more object"), HumanBytes(waiting_bytes));
            let are = if waiting_count == 1 { "is" } else { "are" };
            message(&format!(
                "note: {objects}, {bytes}, {are} not needed, and kept until the grace period is over"
            ));
        }
        requests::report(&remote);
        Ok(())
    }
}
