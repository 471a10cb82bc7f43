//! Publishes the next generation: storages, table, manifest, and the rename that makes it the newest.

use std::io;
use std::mem::take;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use stridemap_format::limits::MAX_CHANGES;
use stridemap_format::{Manifest, Rule, StorageRecord, TableEncoder, TableRef};

use super::Draft;
use super::OpenStore;
use super::pinned::{Generation, Merged, Pin};
use super::replay::{NextManifest, replay};
use super::table::Table;
use super::unsynced;
use super::writer_lock::WriterLock;
use crate::disk::{LockMode, Staged, if_test_omits_step, step};
use crate::error::{Error, ErrorKind, FormatContext, IoContext, Result};
use crate::storage::{Grown, StagedStorage, resize_discarding};

/// Publishes a transaction as the next generation, and moves the handle to it.
///
/// The storages are whole and synced, including those that have `grown`, whose growth locks are held until this
/// returns. `draft` is rebased if another writer has published since it was made. Returns the new generation, whose
/// files stay while it is alive, and the indices of the staged storages that it uses.
///
/// The comments say what a crash just after the step leaves behind.
pub(crate) fn publish(
    store: &OpenStore,
    draft: Draft,
    staged: Vec<StagedStorage>,
    grown: Vec<Grown>,
    lock: &WriterLock, // crash: the kernel releases it
) -> Result<(Arc<Generation>, Vec<usize>)> {
    // Under the lock: a thread that waits for the lock must then find the handle poisoned.
    store.record_failure(publish_locked(store, draft, staged, grown, lock))
}

fn publish_locked(
    store: &OpenStore,
    draft: Draft,
    mut staged: Vec<StagedStorage>,
    mut grown: Vec<Grown>,
    lock: &WriterLock,
) -> Result<(Arc<Generation>, Vec<usize>)> {
    // 1. The newest generation under the lock. The handle's own may be older.
    store.check_poison()?; // another thread may have set it while this one waited
    unsynced::settle(store, lock)?; // crash: the generations so far, now durable
    let (newest, names) = store.newest_listed(lock)?;
    if_test_omits_step!("newest-under-lock", newest = store.current());
    let mut older = store.older(names, &newest, lock)?;
    unsynced::settle_creation(store, &newest, lock)?; // crash: the store's own name, now durable
    let records: Vec<StorageRecord> = staged.iter().map(|storage| storage.record().clone()).collect();
    let only_relocates = draft.changes.only_relocates();
    let NextManifest { mut manifest, used_staged } = replay(&newest, draft, &records, &grown)?;
    if only_relocates && used_staged.is_empty() {
        return Ok((newest, Vec::new()));
    }

    // 2. Storages.
    let deletes_files = older.delete_garbage(store, &newest, &mut manifest); // crash: garbage, deleted again next time
    for &(index, id) in &used_staged {
        let storage = staged.get_mut(index);
        storage.map_or(Ok(()), |storage| storage.publish(&store.paths, id))?; // crash: an orphan, deleted later
    }
    let mut must_sync_dir = deletes_files || !used_staged.is_empty();
    for grown in &mut grown {
        must_sync_dir |= grown.publish(&store.paths)?; // crash: unreferenced digests, replaced or deleted later
    }
    if must_sync_dir {
        // Without this sync, a tensor could be left without its storage, or a file without a record that refers to it.
        step!("sync-storages-dir", store.sync_dir(&store.paths.storages_dir()))?; // crash: the same, now durable
    }

    // 3. to 5. The table and the manifest.
    let table = newest.table().cloned();
    let generation = Arc::new(publish_manifest(store, manifest, table, lock)?); // crash: this generation, durable

    // 6. The handle moves on and releases its old generation. What no reader needs is deleted.
    store.install(Arc::clone(&generation));
    store.note_published(generation.number(), lock);
    older.add(newest);
    let sweeps = !store.is_swept.swap(true, Ordering::Relaxed);
    older.after_commit(store, &generation, sweeps); // crash: garbage, deleted next time
    Ok((generation, used_staged.into_iter().map(|(index, _)| index).collect()))
}

/// Publishes a generation whose storages exist and are durable. The manifest holds its changes to `table`, or its
/// whole content if there is no table.
///
/// # Errors
/// `CommitUnknown` if the manifest may have its final name, but that name is not known to be durable; `Io` and
/// `ReadOnly`, after which nothing was published.
fn publish_manifest(
    store: &OpenStore,
    mut manifest: Manifest,
    mut table: Option<Arc<Table>>,
    _lock: &WriterLock,
) -> Result<Generation> {
    let disk = &*store.disk;
    // 3. The table if one is due, then the manifest, under names that no process reads.
    let bytes = match encode_without_table(&manifest, table.as_deref())? {
        Some(bytes) => bytes,
        None => {
            let reference = write_table(store, &mut manifest, table.as_deref())?; // crash: an orphaned table, deleted later
            // A power cut can keep either of two unsynced names, and a manifest without its table does not open.
            step!("sync-table-name", store.sync_dir(&store.paths.meta_dir()))?; // crash: the same
            manifest.table = Some(reference);
            table = Table::of(disk, &store.paths, &manifest)?.map(Arc::new);
            manifest.encode().map_err(unencodable)?
        }
    };
    let (mut file, pin) = write_manifest(store, &bytes)?; // crash: an unfinished file, deleted later

    // 4. and 5. The rename that publishes the manifest, and the durability point.
    let target = store.paths.manifest(manifest.generation);
    let unknown = |e: Error| {
        let generation = manifest.generation;
        let message = format!(
            "commit of generation {generation} may or may not have been published; open the store again to check; \
             if it was published, commit or run gc to make it durable: {e}"
        );
        Error::new(ErrorKind::CommitUnknown, message).caused_by(&e).after_failed_sync()
    };
    if let Err(e) = step!("rename-manifest", file.publish(&target)) {
        let is_unknown = !is_refusal(&e) || disk.may_be_remote(&store.paths.meta_dir());
        let error = Error::io("publish manifest", &target, e);
        return Err(if is_unknown { unknown(error) } else { error });
    } // crash: the old generation or this one
    let synced = step!("sync-manifest-name", store.sync_dir(&store.paths.meta_dir()));
    synced.map_err(unknown)?; // crash: this generation
    Ok(Generation::new(manifest, table, pin.renamed(), store.is_durable()))
}

/// Whether an error says that a rename on a local disk was not done: there is no space or no permission, or something is
/// in the way. Any other error may follow the change: an I/O error, for example, may be about the journal.
fn is_refusal(e: &io::Error) -> bool {
    #[rustfmt::skip]
    const REFUSALS: [Errno; 15] = [
        Errno::NOSPC, Errno::DQUOT, Errno::MLINK,
        Errno::ACCESS, Errno::PERM, Errno::ROFS,
        Errno::EXIST, Errno::BUSY, Errno::NOENT, Errno::NOTDIR, Errno::XDEV,
        Errno::NAMETOOLONG, Errno::LOOP, Errno::MFILE, Errno::NFILE,
    ];
    e.raw_os_error().is_some_and(|number| REFUSALS.contains(&Errno::from_raw_os_error(number)))
}

/// Encodes a manifest with its changes. Returns `None` if a new table is due first, or if the changes since the last
/// table are too long for one manifest.
fn encode_without_table(manifest: &Manifest, table: Option<&Table>) -> Result<Option<Vec<u8>>> {
    if is_table_due(manifest, table) {
        return Ok(None);
    }
    match manifest.encode() {
        Err(e) if e.rule() == Rule::ManifestFrame && manifest.change_count() > 0 => Ok(None),
        encoded => Ok(Some(encoded.map_err(unencodable)?)),
    }
}

fn unencodable(e: stridemap_format::Error) -> Error {
    Error::refused("write a manifest", e)
}

/// Whether to write a new table: if there are more than 64 changes since the last one, and more than the square root of
/// its entry count. Each manifest repeats the changes, and each table repeats everything; this limit balances the two
/// costs. If the table has very many entries, the limit on the changes in a manifest comes first.
fn is_table_due(manifest: &Manifest, table: Option<&Table>) -> bool {
    const SMALL_DELTA: u64 = 64;
    let entry_count = table.map_or(0, |table| table.reference().entry_count());
    manifest.change_count() > SMALL_DELTA.max(entry_count.isqrt()).min(MAX_CHANGES as u64)
}

/// Moves the changes of `manifest` to a new table, with everything in its base table, and publishes the table under
/// its name.
fn write_table(store: &OpenStore, manifest: &mut Manifest, base: Option<&Table>) -> Result<TableRef> {
    const FLUSH_BYTES: usize = 1 << 20;
    let dir = store.paths.meta_dir();
    let base_bytes = base.map_or(0, |table| table.reference().length_bytes());
    let failed = |e| unwritten("write a table in", &dir, base_bytes, e);
    let mut staged = Staged::create(&store.disk, &dir).map_err(failed)?;
    let mut encoder = TableEncoder::new(store.uuid, manifest.generation, manifest.next_storage_id);
    let (mut buffer, mut offset_bytes) = (Vec::new(), 0);
    // With room for the nodes that one entry completes.
    resize_discarding(&mut buffer, 2 * FLUSH_BYTES)?;
    buffer.clear();
    let mut flush = |buffer: &mut Vec<u8>, at_least: usize| {
        if buffer.len() >= at_least {
            staged.file().write_all_at(buffer, offset_bytes).map_err(failed)?;
            offset_bytes += buffer.len() as u64;
            buffer.clear();
        }
        Ok::<_, Error>(())
    };
    let base_storages = base.into_iter().flat_map(Table::scan_storages);
    for entry in Merged::new(base_storages, take(&mut manifest.storages).into_iter()) {
        let (id, record) = entry?;
        encoder.push_storage(id, &record, &mut buffer).refused_to("write a table")?;
        flush(&mut buffer, FLUSH_BYTES)?;
    }
    let base_tensors = base.map(|table| table.scan_tensors("")).transpose()?.into_iter().flatten();
    for entry in Merged::new(base_tensors, take(&mut manifest.tensors).into_iter()) {
        let (name, record) = entry?;
        encoder.push_tensor(&name, &record, &mut buffer).refused_to("write a table")?;
        flush(&mut buffer, FLUSH_BYTES)?;
    }
    let reference = encoder.finish(&mut buffer).refused_to("write a table")?;
    flush(&mut buffer, 0)?;
    step!("sync-table", sync_file(store, &staged))?;
    let target = store.paths.table(manifest.generation);
    step!("rename-table", staged.publish_over_orphan(&target)).doing("publish table", &target)?;
    Ok(reference)
}

/// Writes the manifest under a temporary name, and pins it.
fn write_manifest(store: &OpenStore, bytes: &[u8]) -> Result<(Staged, Pin)> {
    let dir = store.paths.meta_dir();
    let failed = |e| unwritten("write a manifest in", &dir, bytes.len() as u64, e);
    let staged = Staged::create(&store.disk, &dir).map_err(failed)?;
    staged.file().write_all_at(bytes, 0).map_err(failed)?;
    step!("sync-manifest", sync_file(store, &staged))?; // otherwise the newest manifest could be empty
    // Replaces the lock of an unfinished file with that of a reader, while no reader knows the file.
    if !step!("pin-published", staged.file().try_lock(LockMode::Shared)).map_err(failed)? {
        return Err(failed(io::ErrorKind::WouldBlock.into()));
    }
    let pin = Pin::new(staged.file()).map_err(failed)?;
    Ok((staged, pin))
}

/// Returns the error for a file of about `length_bytes` that could not be written. On a full disk it says how to make
/// room.
fn unwritten(action: &str, dir: &Path, length_bytes: u64, e: io::Error) -> Error {
    let is_full = matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let error = Error::io(action, dir, e);
    if !is_full {
        return error;
    }
    error.advised(format_args!(
        "nothing was changed; even a commit that removes tensors needs space, this one at least {} KiB: delete other \
         files on that file system, or run gc, which needs no space",
        length_bytes / 1024 + 16
    ))
}

fn sync_file(store: &OpenStore, staged: &Staged) -> Result<()> {
    if store.is_durable() {
        staged.file().sync().syncing("sync", staged.path())?;
    }
    Ok(())
}
