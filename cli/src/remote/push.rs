//! `push`: publishes a store at a URL.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::HumanBytes;
use serde_json::json;
use stridemap::{Store, StoreOptions};
use stridemap_remote::{Pushed, Remote};

use super::bar::Bar;
use super::conflict::with_commands;
use super::requests::{self, RequestArgs};
use super::url::{check_order, check_untagged_url};
use crate::args::DryRun;
use crate::error::Result;
use crate::input::open_store;
use crate::ui::{counted, examples, message, write_json};

/// Publish a store at a URL: its newest generation, with its tags
///
/// The first push to a URL makes a remote there, and later ones send only what it lacks. A generation appears there at
/// once or not at all. It is read in place (ls URL), or as a copy that stays the same store (pull, follow). A push that
/// was killed is repeated by the same command, which does not send finished objects again.
///
/// If someone else has pushed since this store was pushed or pulled, push refuses, because nothing is merged. Keep one of
/// both: push to another URL, or pull to a new path, and make the changes there again.
///
/// URL is s3://bucket/path, gs://bucket/path, az://container/path or file:///path. Credentials come from the
/// environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT,
/// AZURE_STORAGE_ACCOUNT_NAME and others.
///
/// Elements of mutable and live tensors are sent as they are at that moment. A store that uses files in place is
/// refused: compact --materialize copies their elements into it.
#[derive(clap::Args)]
#[command(after_help = examples(&["push model.smap s3://bucket/model.smap", "push model.smap file:///mnt/shared/model.smap -n"]))]
pub(crate) struct PushArgs {
    /// The store
    store: PathBuf,
    /// Where to publish it
    url: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    requests: RequestArgs,
}

/// Whether the remote may have the new generation, though the push has failed.
static MAY_BE_PUBLISHED: AtomicBool = AtomicBool::new(false);

/// Returns the message that says what an interrupted push has done.
pub(crate) fn interrupted_message() -> &'static str {
    match MAY_BE_PUBLISHED.load(Ordering::Relaxed) {
        true => {
            "push: interrupted while the generation was being published, so the URL may have it; push again to find out: that \
             says that the URL is up to date, or publishes it"
        }
        false => "push: interrupted; nothing was published",
    }
}

pub(crate) fn run(args: &PushArgs, out: &mut impl Write) -> Result<()> {
    check_order("push", Path::new(&args.url), &args.store)?;
    check_untagged_url(Path::new(&args.url))?;
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let remote = args.requests.open(&args.url)?;
    let refused = |e: stridemap::Error| {
        MAY_BE_PUBLISHED.store(e.to_string().contains("may have been published"), Ordering::Relaxed);
        with_commands(e, &args.store, remote.location())
    };
    if args.dry_run.dry_run {
        let planned = remote.plan_push(&store).map_err(refused)?;
        if args.json {
            return print_json(args, &planned, (&store, &remote), out);
        }
        return match is_up_to_date(&planned) {
            true => Ok(writeln!(out, "{}", up_to_date(&planned, &remote))?),
            false => {
                let (generation, bytes) = (planned.generation, HumanBytes(planned.changed_bytes));
                Ok(writeln!(out, "would push generation {generation} to {}: {bytes}", remote.location())?)
            }
        };
    }
    let bar = Bar::new("push");
    let pushed = remote.push(&store, &|done| bar.show(done)).map_err(refused)?;
    bar.clear();
    if args.json {
        print_json(args, &pushed, (&store, &remote), out)?;
    }
    let sent = match is_up_to_date(&pushed) {
        true => up_to_date(&pushed, &remote),
        false => {
            let Pushed { changed_bytes, sent_bytes, object_count, .. } = pushed;
            let tags = match store.tags()?.len() as u64 {
                0 => String::new(),
                count => format!(" with {}", counted(count, "tag")),
            };
            let (changed, sent) = (HumanBytes(changed_bytes), HumanBytes(sent_bytes));
            let objects = counted(object_count, "object");
            format!(
                "pushed {}{tags} to {}, {changed} changed, {sent} sent in {objects}: generation {}",
                args.store.display(),
                remote.location(),
                pushed.generation
            )
        }
    };
    message(&sent);
    requests::report(&remote);
    Ok(())
}

fn is_up_to_date(pushed: &Pushed) -> bool {
    pushed.previous == Some(pushed.generation) && pushed.changed_bytes == 0
}

fn up_to_date(pushed: &Pushed, remote: &Remote) -> String {
    format!("{} is up to date: generation {}", remote.location(), pushed.generation)
}

fn print_json(
    args: &PushArgs,
    pushed: &Pushed,
    (store, remote): (&Store, &Remote),
    out: &mut impl Write,
) -> Result<()> {
    let tags: Vec<String> = store.tags()?.into_iter().map(|tag| tag.name).collect();
    let record = json!({
        "url": remote.location(),
        "is_dry_run": args.dry_run.dry_run,
        "generation": pushed.generation,
        "previous": pushed.previous,
        "tags": tags,
        "changed_bytes": pushed.changed_bytes,
        "sent_bytes": pushed.sent_bytes,
        "objects": pushed.object_count,
        "requests": requests::record(remote),
    });
    write_json(out, record)
}
