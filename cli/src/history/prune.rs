//! `prune`: removes old tags.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use stridemap::StoreOptions;
use stridemap::history::Retention;

use super::tag::{report_removed, stored, would_remove};
use super::time::parse_duration;
use crate::args::DryRun;
use crate::at::unknown;
use crate::error::{Error, Result};
use crate::input::open_store;
use crate::names::Pattern;
use crate::remote::is_url;
use crate::remote::prune::RemoteArgs;
use crate::ui::{counted, examples, message};

/// Parses a number of tags or generations.
fn parse_count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "expected a whole number, at least 1".to_owned())
}

/// Remove old tags, and delete what only they keep
///
/// For a store, at least one of the rules must be given: --keep-last, --keep-within, --keep-every. A tag stays if one of them
/// keeps it. With a TAG or GLOB, the rules are about the tags that it names or matches, and all others stay. The
/// order of tags is that of their generations, and of their names if they have the same. If the clock of the
/// machine has jumped, so that the times of some tags are out of order, --keep-within keeps these tags.
///
/// What a process still reads, and what was restored and removed again, is not deleted at once: the message says what
/// compact frees later.
///
/// For a URL, deletes the objects that neither the last generations (--keep-last, 10 if not given) nor tags need, once they
/// have not been needed for the time of --grace. Tags are removed in a store, and then pushed.
#[derive(clap::Args)]
#[command(after_help = examples(&["prune model.smap --keep-last 3 --keep-every 100 -n", "prune model.smap --keep-within 7d 'step*'", "prune s3://bucket/model.smap --keep-last 3"]))]
#[command(override_usage = "stridemap prune [OPTIONS] <STORE|URL> [TAG|GLOB]...")]
pub(crate) struct PruneArgs {
    /// The store, or the URL of one
    #[arg(value_name = "STORE|URL")]
    pub(crate) store: PathBuf,
    /// Only these tags, and those whose whole name matches a glob, such as 'step*'; all tags if none is given
    #[arg(value_name = "TAG|GLOB")]
    patterns: Vec<String>,
    /// Keep the last N tags; two tags of one generation count twice. For a URL: the last N generations, besides those with tags
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    keep_last: Option<u64>,
    /// Keep the tags of generations published at most this long before that of the last tag: 90m, 12h, 7d, 2w
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = parse_duration)]
    keep_within: Option<Duration>,
    /// Keep the last tag of every N generations; each commit is one, also that of tag
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    keep_every: Option<u64>,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn run(args: &PruneArgs, out: &mut impl Write) -> Result<()> {
    let rules = [
        (args.keep_last.is_some(), "--keep-last N"),
        (args.keep_within.is_some(), "--keep-within DURATION"),
        (args.keep_every.is_some(), "--keep-every N"),
    ];
    if is_url(&args.store) {
        check_has_no_tags(args, rules)?;
        return args.remote.run(&args.store, args.keep_last, args.dry_run.dry_run, out);
    }
    args.remote.check_unused(&args.store)?;
    if !rules.iter().any(|(is_given, _)| *is_given) {
        let rules = rules.map(|(_, rule)| rule).join(", ");
        return Err(Error::at(
            "prune",
            &args.store,
            format!("no rule says what to keep; give at least one: {rules}"),
        ));
    }
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let tags = store.tags()?;
    let pattern = |text: &String| {
        let is_tag = tags.iter().any(|tag| tag.name == *text);
        let pattern = Pattern::parse(text.clone(), is_tag)?;
        match tags.iter().any(|tag| pattern.matches(&tag.name)) {
            true => Ok(pattern),
            false if pattern.is_name() => Err(unknown(&store, text)?),
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
    // These tags would go now. Those that go are chosen again under the lock of the commit.
    let (removed, before) = match policy.removes(tags, is_candidate)? {
        removed if removed.is_empty() => (removed, None),
        removed if args.dry_run.dry_run => return would_remove(&store, &removed, out),
        _ => {
            let before = stored(&store);
            (store.retain(&policy, is_candidate)?, before)
        }
    };
    if removed.is_empty() {
        message(&format!("nothing to prune: the rules keep {}", counted(count, "tag")));
        return Ok(());
    }
    let names: Vec<&str> = removed.iter().map(|tag| tag.name.as_str()).collect();
    report_removed(&store, &names, before.as_ref(), store.generation());
    Ok(())
}

/// Refuses tags, and the rules that are only about them.
fn check_has_no_tags(args: &PruneArgs, rules: [(bool, &str); 3]) -> Result<()> {
    let [_, about_tags @ ..] = rules;
    let rule = about_tags.into_iter().find_map(|(is_given, rule)| is_given.then_some(rule));
    let tag = args.patterns.first().map(|tag| format!("{tag:?}"));
    match rule.map(str::to_owned).or(tag) {
        Some(given) => {
            let why = format!(
                "{given} is about the tags of a store on this machine; remove tags there, and push the store"
            );
            Err(Error::at("prune", &args.store, why))
        }
        None => Ok(()),
    }
}
