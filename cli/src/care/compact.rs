//! `compact`: frees bytes that no tensor refers to.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use stridemap::Store;
use stridemap::maintenance::{SkipReason, SpaceReason, Stats};

use crate::args::External;
use crate::error::Result;
use crate::input::open_store;
use crate::ui::{counted, message, progress, storage_id, warn};

/// Rewrite storages to free bytes that no tensor refers to
///
/// A storage is rewritten if that frees at least a quarter of it, and at least 4 KiB. Compaction first deletes
/// files that are no longer needed, as gc does. Tensors keep their names, sizes and elements. Old files that
/// readers still use are deleted by the first commit or gc after the readers have finished. A storage that another
/// process is changing is skipped. A damaged storage is skipped too, and the exit code is then 1.
///
/// With --materialize, elements in files that were imported in place are first copied into the store, which then no
/// longer needs the files.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap compact model.smap")]
pub(crate) struct CompactArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// First copy elements of files that were imported in place into the store
    #[arg(long)]
    pub(crate) materialize: bool,
    #[command(flatten)]
    pub(crate) external: External,
}

/// Runs the command. Returns whether no damage was found.
pub(crate) fn run(args: &CompactArgs, out: &mut impl Write) -> Result<bool> {
    let store = open_store(&args.external.options(), &args.store)?;
    if args.materialize {
        materialize(&store, out)?;
    }
    let bar = progress("compact", bytes_to_write(&store.stats()?));
    let compacted = store.compact(|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let deleted = compacted.collected;
    if deleted.file_count > 0 {
        writeln!(
            out,
            "deleted {}, {}",
            counted(deleted.file_count, "file"),
            counted(deleted.size_bytes, "byte")
        )?;
    }
    let storages = counted(compacted.storage_count, "storage");
    let (before, after) = (HumanBytes(compacted.before_bytes), HumanBytes(compacted.after_bytes));
    match compacted.storage_count {
        0 => writeln!(out, "compacted {storages}")?,
        _ => writeln!(out, "compacted {storages}: {before}, now {after}")?,
    }
    report_held_bytes(&store)?;
    let mut is_whole = true;
    for skipped in &compacted.skipped {
        is_whole &= !matches!(skipped.reason, SkipReason::Damaged(_));
        let (id, bytes) = (storage_id(skipped.storage_id), HumanBytes(skipped.reclaimable_bytes));
        warn(&format!("skipped storage {id} ({bytes} reclaimable): {}", skipped.reason));
    }
    Ok(is_whole)
}

fn materialize(store: &Store, out: &mut impl Write) -> Result<()> {
    // Bytes that no tensor refers to are not copied, so the bar may end early.
    let bar = progress("materialize", store.stats()?.external_bytes);
    let done = store.materialize(|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let storages = counted(done.storage_count, "external storage");
    match done.storage_count {
        0 => writeln!(out, "materialized {storages}")?,
        _ => writeln!(out, "materialized {storages}: {}", HumanBytes(done.size_bytes))?,
    }
    for skipped in &done.skipped {
        warn(&format!("skipped external storage {}: {}", storage_id(skipped.storage_id), skipped.reason));
    }
    Ok(())
}

/// Reports the bytes that cannot be deleted yet because readers hold them.
pub(crate) fn report_held_bytes(store: &Store) -> Result<()> {
    let stats = store.stats()?;
    let (mut bytes, mut holders) = (0u64, BTreeSet::<u32>::new());
    for reclaimable in stats.reclaimable() {
        if let SpaceReason::Pinned { processes, .. } = &reclaimable.reason {
            bytes = bytes.saturating_add(reclaimable.bytes);
            holders.extend(processes);
        }
    }
    if bytes > 0 {
        let holders: Vec<String> = holders.into_iter().map(|id| format!(" {id}")).collect();
        let bytes = HumanBytes(bytes);
        message(&format!(
            "{bytes} are held by readers on older generations (process{}); the next commit or gc after they end \
             frees them",
            holders.concat()
        ));
    }
    Ok(())
}

/// Returns the number of bytes that a compaction will write if no commit happens in the meantime.
fn bytes_to_write(stats: &Stats) -> u64 {
    let kept = stats.storages.iter().filter_map(|storage| {
        let unreached =
            storage.reclaimable.iter().find(|reclaimable| reclaimable.reason == SpaceReason::Unreached)?;
        Some(storage.size_bytes.saturating_sub(unreached.bytes))
    });
    kept.fold(0, u64::saturating_add)
}
