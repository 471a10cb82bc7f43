//! `prune`: removes old tags.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::value_parser;
use stridemap::StoreOptions;
use stridemap::history::Retention;

use super::tag::remove;
use super::time::parse_duration;
use crate::args::DryRun;
use crate::error::{Error, Result};
use crate::input::open_store;
use crate::names::Pattern;
use crate::ui::{counted, examples, message};

/// Remove old tags, and delete what only they keep
///
/// At least one of the rules must be given: --keep-last, --keep-within, --keep-every. A tag stays if one of them keeps it. With a GLOB or PREFIX, the rules are about the tags that match,
/// and all others stay. The order of tags is that of their generations. If the clock of the machine has jumped, so that
/// the times of some tags are out of order, --keep-within keeps these tags.
#[derive(clap::Args)]
#[command(after_help = examples(&["prune model.smap --keep-last 3 --keep-every 100 -n", "prune model.smap --keep-within 7d 'step*'"]))]
#[command(override_usage = "stridemap prune [OPTIONS] <STORE> [GLOB|PREFIX]...")]
#[command(group = clap::ArgGroup::new("rule").required(true).multiple(true))]
pub(crate) struct PruneArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Only tags that match a glob, such as 'step*', or begin with a prefix; all tags if none is given
    #[arg(value_name = "GLOB|PREFIX")]
    patterns: Vec<String>,
    /// Keep the last N tags
    #[arg(long, value_name = "N", group = "rule", value_parser = value_parser!(u64).range(1..))]
    keep_last: Option<u64>,
    /// Keep the tags of generations published at most this long before that of the last tag: 90m, 12h, 7d, 2w
    #[arg(long, value_name = "DURATION", group = "rule", value_parser = parse_duration)]
    keep_within: Option<Duration>,
    /// Keep the last tag of every N generations
    #[arg(long, value_name = "N", group = "rule", value_parser = value_parser!(u64).range(1..))]
    keep_every: Option<u64>,
    #[command(flatten)]
    dry_run: DryRun,
}

pub(crate) fn run(args: &PruneArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let tags = store.tags()?;
    let is_tag = |text: &String| tags.iter().any(|tag| tag.name == *text);
    let pattern = |text: &String| {
        let pattern = Pattern::parse(text.clone(), is_tag(text))?;
        match tags.iter().any(|tag| pattern.matches(&tag.name)) {
            true => Ok(pattern),
            false => Err(Error::NoMatch(format!("prune: no tag matches {text:?}"))),
        }
    };
    let patterns: Vec<Pattern> = args.patterns.iter().map(pattern).collect::<Result<_>>()?;
    let is_candidate =
        |name: &str| patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name));
    let policy = Retention {
        keep_last: args.keep_last.map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
        keep_within: args.keep_within,
        keep_every: args.keep_every,
    };
    let count = tags.iter().filter(|tag| is_candidate(&tag.name)).count() as u64;
    let removed = policy.removes(tags, is_candidate)?;
    if removed.is_empty() {
        message(&format!("nothing to prune: the rules keep {}", counted(count, "tag")));
        return Ok(());
    }
    remove(&store, &removed, args.dry_run.dry_run, out)
}
