//! `compact`: frees bytes that no tensor refers to.

use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use serde_json::{Value, json};
use stridemap::maintenance::{Compacted, DiskUsage, SkipReason, Skipped, SpaceReason};
use stridemap::{Result as LibraryResult, Snapshot, StorageInfo, StorageKind, Store};

use crate::args::{DryRun, External};
use crate::error::Result;
use crate::held::{held, report_held_bytes};
use crate::input::{check_writable, open_store, stored_bytes};
use crate::names::{command_line, shell_word};
use crate::ui::{advance, counted, examples, message, storage_id, warn, write_json};
use crate::undo::newest_tag_with;

/// Rewrite storages to free bytes that no tensor refers to
///
/// This frees unused parts of storages. A whole storage needs no compaction: rm deletes it when its last tensor is
/// removed, unless a tag keeps it. A storage is rewritten if that frees at least a quarter of it, and at least 4
/// KiB; with --all, if it frees anything. Small storages, of less than 4 MiB, become one if there are 16 or more of them;
/// with --all, two or more. Compaction first deletes files that are no longer needed. Tensors keep
/// their names, sizes and elements. Old files that readers still use are deleted by the first commit or compaction
/// after the readers have finished. A storage that a tag keeps, or that another process is changing, is skipped. A
/// damaged storage is skipped too, and the exit code is then 1.
///
/// With --materialize, elements in files that were imported in place are first copied into the store, whose newest
/// generation then no longer needs the files. Tagged generations still do. With -n, what is printed of the storages to
/// rewrite is without these copies. If another process changes a tensor meanwhile, its file is skipped, and the exit code is 1.
#[derive(clap::Args)]
#[command(after_help = examples(&["compact model.smap -n", "compact model.smap --all", "compact model.smap --materialize"]))]
pub(crate) struct CompactArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Rewrite every storage with bytes that no tensor refers to, however few
    #[arg(long)]
    pub(crate) all: bool,
    /// First copy into the store the elements of files that were imported in place
    #[arg(long)]
    pub(crate) materialize: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
    #[command(flatten)]
    pub(crate) external: External,
}

/// What was done, or would be done.
struct Done {
    materialized: Option<Compacted>,
    compacted: Compacted,
    /// The disk usage afterwards.
    after: DiskUsage,
}

impl Done {
    fn plan(args: &CompactArgs, store: &Store) -> Result<Self> {
        let materialized = args.materialize.then(|| store.plan_materialize()).transpose()?;
        Ok(Done { materialized, compacted: store.plan_compact(args.all)?, after: store.disk_usage()? })
    }

    fn by_running(args: &CompactArgs, store: &Store) -> Result<Self> {
        let before = store.disk_usage()?;
        let materialize = || -> Result<Compacted> {
            // Bytes that no tensor refers to are not copied, so the bar may end early.
            let size_bytes = stored_bytes(&store.snapshot(), true)?;
            Ok(store.materialize(advance("materialize", size_bytes))?)
        };
        let materialized = args.materialize.then(materialize).transpose()?;
        let compacted = store.compact(args.all, advance("compact", bytes_to_write(&before, args.all)))?;
        Ok(Done { materialized, compacted, after: store.disk_usage()? })
    }

    /// Whether no damage was found and no external storage was skipped.
    fn is_complete(&self) -> bool {
        let is_damaged = |skipped: &Skipped| matches!(skipped.reason, SkipReason::Damaged(_));
        !self.compacted.skipped.iter().any(is_damaged)
            && self.materialized.as_ref().is_none_or(|done| done.skipped.is_empty())
    }

    fn print(&self, args: &CompactArgs, out: &mut impl Write) -> Result<()> {
        let Done { materialized, compacted, .. } = self;
        let (would, now) = if args.dry_run.dry_run { (true, "then") } else { (false, "now") };
        let verb = |done: &str, to_do: &str| if would { format!("would {to_do}") } else { done.to_owned() };
        if let Some(done) = materialized {
            let (verb, storages) =
                (verb("materialized", "materialize"), counted(done.storage_count, "external storage"));
            match done.storage_count {
                0 => writeln!(out, "{verb} {storages}")?,
                _ => writeln!(out, "{verb} {storages}: {}", HumanBytes(done.after_bytes))?,
            }
            for skipped in &done.skipped {
                warn(&format!(
                    "skipped external storage {}: {}",
                    storage_id(skipped.storage_id),
                    skipped.reason
                ));
            }
        }
        let deleted = compacted.collected;
        let has_done_other =
            deleted.file_count > 0 || materialized.as_ref().is_some_and(|done| done.storage_count > 0);
        if deleted.file_count > 0 {
            let (files, bytes) = (counted(deleted.file_count, "file"), counted(deleted.size_bytes, "byte"));
            writeln!(out, "{} {files}, {bytes}", verb("deleted", "delete"))?;
        }
        let (verb, storages) = (verb("compacted", "compact"), counted(compacted.storage_count, "storage"));
        let (old, new) = (HumanBytes(compacted.before_bytes), HumanBytes(compacted.after_bytes));
        match compacted.storage_count {
            0 if has_done_other || !compacted.skipped.is_empty() => {}
            0 => writeln!(out, "nothing to compact")?,
            count if count > compacted.new_storage_count => {
                writeln!(out, "{verb} {storages} into {}: {old}, {now} {new}", compacted.new_storage_count)?;
            }
            _ => writeln!(out, "{verb} {storages}: {old}, {now} {new}")?,
        }
        Ok(())
    }
}

/// Runs the command. Returns whether no damage was found and, with `--materialize`, no external storage was skipped.
pub(crate) fn run(args: &CompactArgs, out: &mut impl Write) -> Result<bool> {
    let store = open_store(&args.external.options(), &args.store)?;
    let done = match args.dry_run.dry_run {
        true => {
            check_writable(&store)?;
            Done::plan(args, &store)?
        }
        false => Done::by_running(args, &store)?,
    };
    if args.json {
        write_json(out, record(args, &done))?;
        return Ok(done.is_complete());
    }
    done.print(args, out)?;
    let Done { compacted, after, .. } = &done;
    report_held_bytes(after);
    if args.materialize {
        note_tagged_files(args, &store);
    }
    if !args.all && !args.dry_run.dry_run {
        report_kept_bytes(after, compacted);
    }
    for skipped in &compacted.skipped {
        let (id, bytes) = (storage_id(skipped.storage_id), HumanBytes(skipped.reclaimable_bytes));
        warn(&format!("skipped storage {id} ({bytes} reclaimable): {}", skipped.reason));
    }
    Ok(done.is_complete())
}

/// Says that a tagged generation still needs files outside the store.
fn note_tagged_files(args: &CompactArgs, store: &Store) {
    let needs_files = |snapshot: &Snapshot| {
        let kind = |storage: LibraryResult<StorageInfo>| storage.map(|storage| storage.kind);
        snapshot.storages().map(kind).any(|kind| matches!(kind, Ok(StorageKind::External)))
    };
    let Some(tag) = newest_tag_with(store, needs_files) else { return };
    let remove = command_line("tag", &["-d", &args.store.to_string_lossy(), &tag]);
    message(&format!(
        "note: {} still needs files outside the store: keep them, or remove the tag with {remove}",
        shell_word(&tag)
    ));
}

fn record(args: &CompactArgs, Done { materialized, compacted, after }: &Done) -> Value {
    let (held_bytes, held_by) = held(after);
    let skipped = materialized.iter().flat_map(|it| &it.skipped).chain(&compacted.skipped);
    let skipped = skipped.map(|skipped| {
        json!({
            "storage": storage_id(skipped.storage_id),
            "reclaimable_bytes": skipped.reclaimable_bytes,
            "is_damaged": matches!(skipped.reason, SkipReason::Damaged(_)),
            "reason": skipped.reason.to_string(),
        })
    });
    json!({
        "is_dry_run": args.dry_run.dry_run,
        "materialized_storage_count": materialized.as_ref().map_or(0, |it| it.storage_count),
        "materialized_bytes": materialized.as_ref().map_or(0, |it| it.after_bytes),
        "compacted_storage_count": compacted.storage_count,
        "new_storage_count": compacted.new_storage_count,
        "before_bytes": compacted.before_bytes,
        "after_bytes": compacted.after_bytes,
        "deleted_file_count": compacted.collected.file_count,
        "deleted_bytes": compacted.collected.size_bytes,
        "held_bytes": held_bytes,
        "held_by": held_by,
        "skipped": skipped.collect::<Vec<_>>(),
    })
}

/// The minimum number of unreachable bytes for a note.
const MIN_REPORTED_BYTES: u64 = 4096;

/// Reports unreachable bytes that are too few for a storage to be rewritten.
fn report_kept_bytes(usage: &DiskUsage, compacted: &Compacted) {
    let is_skipped = |id| compacted.skipped.iter().any(|skipped| Some(skipped.storage_id) == id);
    let kept = usage.spare.iter().filter(|file| file.reason == SpaceReason::Kept);
    let kept = kept.filter(|file| !is_skipped(file.storage_id)).map(|file| file.spare_bytes);
    let bytes = kept.fold(0, u64::saturating_add);
    if bytes >= MIN_REPORTED_BYTES {
        message(&format!(
            "note: {} are unreachable in storages that were not rewritten: less than a quarter of each, or less than \
             4 KiB; free them with --all",
            HumanBytes(bytes)
        ));
    }
}

/// Returns the number of bytes that a compaction will write if no commit happens in the meantime.
fn bytes_to_write(usage: &DiskUsage, is_all: bool) -> u64 {
    let is_freed =
        |reason: &SpaceReason| *reason == SpaceReason::Unreached || is_all && *reason == SpaceReason::Kept;
    let rewritten = usage.spare.iter().filter(|file| is_freed(&file.reason));
    rewritten.map(|file| file.size_bytes - file.spare_bytes).fold(0, u64::saturating_add)
}
