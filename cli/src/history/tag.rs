//! `tag`: lists, makes and removes tags.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use serde_json::json;
use stridemap::history::TagInfo;
use stridemap::maintenance::{DiskUsage, SpaceReason, SpareFile};
use stridemap::{OnExisting, Snapshot, StorageKind, Store, StoreOptions};

use super::time::{time_cell, utc};
use crate::args::DryRun;
use crate::at::{refused, snapshot_at, split, unknown};
use crate::error::{Error, Result};
use crate::held::report_held_bytes;
use crate::input::{check_writable, open_store, open_to_look};
use crate::names::{command_line, listed, one_line, quoted, shell_word};
use crate::plan::begin;
use crate::remote::is_url;
use crate::ui::{Column, Table, counted, examples, message, write_json};
use crate::undo::freed::note_without_tags;

/// List, make or remove tags: names for generations, which keep them
///
/// Without a NAME, lists the tags, the oldest generation first. With a NAME, tags the newest generation, or the one of
/// --at. A tagged generation stays on disk with all its tensors until its last tag is removed: STORE@TAG names it for
/// the commands that look at stores, restore commits its state again, and log lists what has changed.
///
/// The elements of sealed tensors never change. Those of mutable and live tensors are changed in place: a tag keeps
/// the tensors, but not their elements.
///
/// With -d, what a process still reads, and what was restored and removed again, is not deleted at once: the message
/// says what compact frees later.
#[derive(clap::Args)]
#[command(after_help = examples(&["tag model.smap", "tag model.smap v1 -m 'before fine-tuning'", "tag -d model.smap v1"]))]
pub(crate) struct TagArgs {
    /// The store; to list the tags, also a URL
    pub(crate) store: PathBuf,
    /// The tag to make, or with -d the tags to remove
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Remove tags, and delete what only they keep
    #[arg(short, long, requires = "names")]
    delete: bool,
    /// A text that the list and the log show
    #[arg(short, long, value_name = "TEXT", requires = "names", conflicts_with = "delete")]
    message: Option<String>,
    /// The generation to tag, by number or by another tag; only generations that are kept can be tagged
    #[arg(long, value_name = "N|TAG", requires = "names", conflicts_with = "delete")]
    at: Option<String>,
    /// Replace the tag if it exists
    #[arg(long, requires = "names", conflicts_with = "delete")]
    force: bool,
    /// Print one JSON object per tag
    #[arg(long, conflicts_with = "names")]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

impl TagArgs {
    /// Whether the command only lists tags.
    pub(crate) fn is_list(&self) -> bool {
        self.names.is_empty()
    }
}

pub(crate) fn run(args: &TagArgs, out: &mut impl Write) -> Result<()> {
    if let Some((path, tag)) = split(&args.store)
        && !is_url(&args.store)
        && !args.is_list()
        && !args.delete
        && args.at.is_none()
    {
        let advice =
            format!("name the store, {}, and the generation with --at {}", path.display(), shell_word(tag));
        return Err(refused(&args.store, &advice));
    }
    if args.is_list() {
        return list(args, &open_to_look(&StoreOptions::new(), &args.store)?, out);
    }
    let store = open_store(&StoreOptions::new(), &args.store)?;
    match args.names.as_slice() {
        names if args.delete => delete(args, &store, names, out),
        [name] => make(args, &store, name, out),
        _ => Err(Error::Refused("tag: one tag is made at a time; with -d, several are removed".to_owned())),
    }
}

const COLUMNS: [Column; 4] = [
    Column::new("tag").shortenable_names(),
    Column::new("generation").right(),
    Column::new("time").drop_order(0),
    Column::new("message").shortenable().drop_order(1),
];

fn list(args: &TagArgs, store: &Store, out: &mut impl Write) -> Result<()> {
    let mut table = Table::new(&COLUMNS);
    for tag in store.tags()? {
        let TagInfo { name, generation, time, message, .. } = &tag;
        if args.json {
            let time = utc(*time);
            let record = json!({ "name": name, "generation": generation, "time": time, "message": message });
            write_json(out, record)?;
            continue;
        }
        let message = one_line(message.as_deref().unwrap_or_default());
        table.add_row([listed(name).into_owned(), generation.to_string(), time_cell(*time), message]);
    }
    table.print_data(out)
}

fn make(args: &TagArgs, store: &Store, name: &str, out: &mut impl Write) -> Result<()> {
    let is_dry_run = args.dry_run.dry_run;
    let before = if args.force && !is_dry_run { stored(store) } else { None };
    let (mut txn, newest) = begin(store, is_dry_run)?;
    let snapshot = match &args.at {
        Some(text) => {
            drop(newest);
            snapshot_at(store, text)?
        }
        None => newest,
    };
    if args.force {
        txn.on_existing(OnExisting::Replace);
    }
    if let Some(text) = &args.message {
        txn.message(text);
    }
    txn.tag_snapshot(name, &snapshot)?;
    let is_moved = |tag: &TagInfo| tag.name == name && tag.generation != snapshot.generation();
    let replaced = store.tags()?.into_iter().find(is_moved);
    let replacing = replaced.as_ref().map(|tag| format!(", no longer generation {}", tag.generation));
    let what = format!(
        "generation {} as {}{}",
        snapshot.generation(),
        shell_word(name),
        replacing.unwrap_or_default()
    );
    let changing = changing(&snapshot);
    if is_dry_run {
        writeln!(out, "would tag {what}")?;
        if replaced.is_some() {
            writeln!(out, "would free {}", HumanBytes(store.freed_without(&[name])?))?;
        }
        changing?.iter().for_each(|note| message(note));
        return Ok(());
    }
    drop(snapshot); // The commit deletes what no snapshot needs.
    let generation = txn.commit()?;
    let usages = before.filter(|_| replaced.is_some()).and_then(|before| Some((before, stored(store)?)));
    let freed = usages.as_ref().map(|(before, after)| freed(before, after)).unwrap_or_default();
    message(&format!("tagged {what}{freed}: generation {generation}"));
    usages.iter().for_each(|(before, after)| report_unfreed(store, before, after));
    match changing {
        Ok(note) => note.iter().for_each(|note| message(note)),
        Err(e) => message(&format!("note: it could not be found out which tensors still change: {e}")),
    }
    Ok(())
}

/// Returns a note that says which tensors of a tagged generation still change.
fn changing(snapshot: &Snapshot) -> Result<Option<String>> {
    let mut changing = BTreeSet::new();
    for storage in snapshot.storages() {
        let storage = storage?;
        if matches!(storage.kind, StorageKind::Mutable | StorageKind::Live) {
            changing.insert(storage.id);
        }
    }
    let mut names = Vec::new();
    if !changing.is_empty() {
        for info in snapshot.iter_tensors("")? {
            let info = info?;
            names.extend(changing.contains(&info.storage_id).then_some(info.name));
        }
    }
    Ok(names.first().map(|first| {
        let (tensors, are) =
            (counted(names.len() as u64, "tensor"), if names.len() == 1 { "is" } else { "are" });
        format!(
            "note: {tensors} {are} mutable or live, such as {}: the tag does not keep their elements, which change in \
             place",
            quoted(first)
        )
    }))
}

fn delete(args: &TagArgs, store: &Store, names: &[String], out: &mut impl Write) -> Result<()> {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let tags = store.tags()?;
    if let Some(name) = names.iter().find(|name| !tags.iter().any(|tag| tag.name == **name)) {
        return Err(unknown(store, name)?);
    }
    let tags: Vec<TagInfo> = tags.into_iter().filter(|tag| names.contains(tag.name.as_str())).collect();
    if args.dry_run.dry_run {
        return would_remove(store, &tags, out);
    }
    let names: Vec<&str> = names.into_iter().collect();
    let before = stored(store);
    let mut txn = store.begin()?;
    names.iter().try_for_each(|name| txn.untag(name))?;
    let generation = txn.commit()?;
    report_removed(store, &names, before.as_ref(), generation);
    Ok(())
}

/// Says which tags would be removed, and what that would free.
pub(super) fn would_remove(store: &Store, tags: &[TagInfo], out: &mut impl Write) -> Result<()> {
    check_writable(store)?;
    for TagInfo { name, generation, time, .. } in tags {
        writeln!(out, "would remove {}, generation {generation}, {}", shell_word(name), time_cell(*time))?;
    }
    let names: Vec<&str> = tags.iter().map(|tag| tag.name.as_str()).collect();
    Ok(writeln!(out, "would free {}", HumanBytes(store.freed_without(&names)?))?)
}

/// Says which tags have been removed, and what that has freed. `before` is the disk usage from before.
pub(super) fn report_removed(store: &Store, names: &[&str], before: Option<&DiskUsage>, generation: u64) {
    let removed = match names {
        [name] => shell_word(name).into_owned(),
        _ => counted(names.len() as u64, "tag"),
    };
    let after = stored(store);
    let freed = before.zip(after.as_ref()).map(|(before, after)| freed(before, after)).unwrap_or_default();
    message(&format!("removed {removed}{freed}: generation {generation}"));
    before.zip(after.as_ref()).iter().for_each(|(before, after)| report_unfreed(store, before, after));
}

/// Says what is not freed yet, and what frees it.
fn report_unfreed(store: &Store, before: &DiskUsage, after: &DiskUsage) {
    report_held_bytes(after);
    let is_garbage = |file: &&SpareFile| is_storage(file) && file.reason == SpaceReason::Garbage;
    let garbage = after.spare.iter().filter(is_garbage).map(|file| file.spare_bytes);
    let bytes = garbage.fold(0, u64::saturating_add);
    if bytes > 0 {
        let compact = command_line("compact", &[&store.path().to_string_lossy()]);
        let more = if freed(before, after).is_empty() { "" } else { " more" };
        message(&format!("note: {compact} frees {}{more}", HumanBytes(bytes)));
    }
    note_without_tags(store, before, after).iter().for_each(|note| message(note));
}

/// Whether a file has elements.
fn is_storage(file: &SpareFile) -> bool {
    file.path.extension().is_some_and(|ending| ending == "bin")
}

/// Returns the disk usage, for a message. `None` if it cannot be read: the change of tags does not depend on it.
pub(super) fn stored(store: &Store) -> Option<DiskUsage> {
    store.disk_usage().ok()
}

/// Returns the part of a message that says how many bytes of storages are gone.
fn freed(before: &DiskUsage, after: &DiskUsage) -> String {
    match storage_bytes(before).saturating_sub(storage_bytes(after)) {
        0 => String::new(),
        bytes => format!(", freed {}", HumanBytes(bytes)),
    }
}

/// Returns the length of all storages, whatever keeps them.
fn storage_bytes(usage: &DiskUsage) -> u64 {
    let spare = usage.spare.iter().filter(|file| is_storage(file)).map(|file| file.spare_bytes);
    spare.fold(usage.reachable_bytes, u64::saturating_add)
}
