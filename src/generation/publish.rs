//! Publishes the next generation: storages, table, manifest, and the rename that makes it the newest.

use std::collections::BTreeSet;
use std::io;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use stridemap_format::limits::MAX_CHANGES;
use stridemap_format::{KeptGeneration, KeptKey, Manifest, Rule, StorageRecord, TableEncoder, TableRef};

use super::Draft;
use super::OpenStore;
use super::entries::{GarbageEntry, KeptEntry, Merged, Recorded, StorageEntry, TagEntry, TensorEntry};
use super::older::OlderManifests;
use super::pinned::{Generation, Pin};
use super::replay::{NextManifest, replay};
use super::table::Table;
use super::unsynced;
use super::writer_lock::WriterLock;
use crate::disk::{LockMode, Staged, dir_of, if_test_omits_step, step};
use crate::error::{Error, ErrorKind, FormatContext, IoContext, Result};
use crate::storage::{Grown, StagedStorage, resize_discarding};

/// How many files are listed for each generation, on average, to find what crashed writers left.
const FILES_PER_SWEEP: u64 = 1024;

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
    let NextManifest { mut manifest, used_staged, tag_changes } = replay(&newest, draft, &records, &grown)?;
    if only_relocates && used_staged.is_empty() {
        return Ok((newest, Vec::new()));
    }

    // 2. Storages.
    let deletes_files = older.delete_garbage(store, &newest, (&mut manifest, newest.tables()))?; // crash: garbage, deleted again next time
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

    // 3. The manifests of earlier generations that get a tag.
    for earlier in &tag_changes.gained {
        // A reader may have locked the manifest since it was tagged before.
        let path = store.paths.kept_manifest(earlier.number());
        let is_there = newest.is_released(earlier.number())? && store.disk.stat(&path).is_ok();
        if_test_omits_step!("kept-manifest-stays", is_there = false);
        if is_there {
            continue;
        }
        keep_manifest(store, earlier.manifest())?; // crash: an unreferenced manifest, deleted later
    }

    // 4. to 6. The tables and the manifest.
    let base = Base::of(&newest);
    let generation = Arc::new(publish_manifest(store, manifest, base, lock)?); // crash: this generation, durable

    // 7. The handle moves on and releases its old generation. What no reader needs is deleted.
    let gained = tag_changes.gained.iter().map(|earlier| earlier.number()).collect();
    move_on(store, (newest, &generation), &mut older, (gained, &tag_changes.released), lock); // crash: garbage, deleted next time
    Ok((generation, used_staged.into_iter().map(|(index, _)| index).collect()))
}

/// Moves the handle from the generation before to the one that it has published, and deletes what no reader needs. The
/// last pair is the earlier generations that gained their first tag, and those that lost their last one.
pub(super) fn move_on(
    store: &OpenStore,
    (before, published): (Arc<Generation>, &Arc<Generation>),
    older: &mut OlderManifests,
    tags: (BTreeSet<u64>, &[(u64, KeptGeneration)]),
    lock: &WriterLock,
) {
    store.install(Arc::clone(published));
    store.note_published(published.number(), lock);
    older.add(before);
    // A sweep lists all files. In a store with many files, only some generations are due for one.
    let is_due = published.number() % (1 + published.file_count() / FILES_PER_SWEEP) == 0;
    let sweeps = is_due && !store.is_swept.swap(true, Ordering::Relaxed);
    older.after_commit(store, published, tags, sweeps, lock);
}

/// What the manifest of the next generation is based on.
pub(super) struct Base<'a> {
    /// The generation before.
    pub(super) newest: &'a Generation,
    /// The table of storages and tensors to which its changes apply.
    pub(super) table: Option<Arc<Table>>,
    /// Whether the next generation has that table, and no other. Another store has written it.
    pub(super) is_received: bool,
}

impl<'a> Base<'a> {
    /// The base of a commit: the generation before.
    pub(super) fn of(newest: &'a Generation) -> Self {
        Base { newest, table: newest.table().cloned(), is_received: false }
    }
}

/// Publishes a generation whose storages exist and are durable. The manifest holds its changes to the tables of
/// `base`, or its whole content if there are none.
///
/// # Errors
/// `CommitUnknown` if the manifest may have its final name, but that name is not known to be durable; `Io` and
/// `ReadOnly`, after which nothing was published.
pub(super) fn publish_manifest(
    store: &OpenStore,
    mut manifest: Manifest,
    Base { newest, mut table, is_received }: Base<'_>,
    _lock: &WriterLock,
) -> Result<Generation> {
    let disk = &*store.disk;
    let own = KeptKey { is_tagged: true, generation: manifest.generation };
    let own_kept = manifest.kept.get(&own).copied().flatten();
    let mut history = newest.history().cloned();
    // 4. The tables that are due, then the manifest, under names that no process reads.
    let tables_due = !is_received && is_table_due(&manifest, newest, false);
    let mut is_due = [tables_due, is_table_due(&manifest, newest, true)];
    let bytes = loop {
        let [tables_due, history_due] = is_due;
        if tables_due {
            manifest.table = write_table(store, &mut manifest, table.as_deref(), false)?; // crash: an orphaned table, deleted later
            // A power cut can keep either of two unsynced names, and a manifest without its table does not open.
            step!("sync-table-name", store.sync_dir(&store.paths.generations_dir()))?; // crash: the same
            table = Table::of(disk, &store.paths, &manifest)?.map(Arc::new);
        }
        // Again if the table becomes due only after that of the history was written.
        if let Some(kept) = own_kept {
            let table = manifest.table.map(|table| table.generation);
            manifest.kept.insert(own, Some(KeptGeneration { table, ..kept }));
        }
        if history_due {
            manifest.history = write_table(store, &mut manifest, history.as_deref(), true)?; // crash: an orphan, deleted later
            step!("sync-history-name", store.sync_dir(&store.paths.meta_dir()))?; // crash: the same
            history = Table::of_history(disk, &store.paths, &manifest)?.map(Arc::new);
        }
        is_due = match manifest.encode() {
            Err(e) if e.rule() == Rule::ManifestFrame && !is_received && manifest.change_count(false) > 0 => {
                [true, false]
            }
            Err(e) if e.rule() == Rule::ManifestFrame && manifest.change_count(true) > 0 => [false, true],
            encoded => break encoded.map_err(unencodable)?,
        };
    };
    if own_kept.is_some() {
        keep_manifest(store, &manifest)?; // crash: a manifest of no generation, replaced or deleted later
    }
    let (mut file, pin) = write_manifest(store, &bytes)?; // crash: an unfinished file, deleted later

    // 5. and 6. The rename that publishes the manifest, and the durability point.
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
    Ok(Generation::new(manifest, table, history, pin.renamed(target), store.is_durable()))
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

fn unencodable(e: stridemap_format::Error) -> Error {
    Error::refused("write a manifest", e)
}

/// Whether to write a new table. Each manifest repeats the changes since the last table, and each table repeats
/// everything. If every commit makes as many changes as this one, the two costs are balanced when the square of the
/// changes is twice the product of the table's entries and the changes of a commit. If the table has very many entries,
/// the limit on the changes in a manifest comes first.
///
/// The changes of the history have a lower limit: no tag keeps them, and commits stay short in a store with many tags.
fn is_table_due(manifest: &Manifest, newest: &Generation, is_history: bool) -> bool {
    const SMALL_DELTA: u64 = 64;
    const MAX_HISTORY: u64 = 512;
    let change_count = manifest.change_count(is_history);
    let (table, limit) = match is_history {
        false => (newest.table(), MAX_CHANGES as u64),
        true => (newest.history(), MAX_HISTORY),
    };
    let entry_count = table.map_or(0, |table| table.reference().entry_count());
    let own_changes = change_count.saturating_sub(newest.manifest().change_count(is_history)).max(1);
    let balanced = entry_count.saturating_mul(own_changes).saturating_mul(2).isqrt();
    change_count > SMALL_DELTA.max(balanced).min(limit)
}

/// Moves the changes of `manifest` to a new table, with everything in its base table, and publishes the table under
/// its name. A table has either the storages and the tensors, or the history. Returns `None` if nothing is left.
pub(super) fn write_table(
    store: &OpenStore,
    manifest: &mut Manifest,
    base: Option<&Table>,
    is_history: bool,
) -> Result<Option<TableRef>> {
    let target = match is_history {
        false => store.paths.table(manifest.generation),
        true => store.paths.history(manifest.generation),
    };
    let mut writer = TableWriter::create(store, manifest, base, dir_of(&target))?;
    if is_history {
        writer.add::<TagEntry>(manifest, base)?;
        writer.add::<KeptEntry>(manifest, base)?;
        writer.add::<GarbageEntry>(manifest, base)?;
    } else {
        writer.add::<StorageEntry>(manifest, base)?;
        writer.add::<TensorEntry>(manifest, base)?;
    }
    let TableWriter { mut staged, encoder, mut buffer, offset_bytes, base_bytes, .. } = writer;
    let reference = encoder.finish(&mut buffer).refused_to("write a table")?;
    if reference.entry_count() == 0 {
        return Ok(None);
    }
    let dir = dir_of(&target);
    let written = staged.file().write_all_at(&buffer, offset_bytes);
    written.map_err(|e| unwritten("write a table in", dir, base_bytes, e))?;
    step!("sync-table", sync_file(store, &staged))?;
    step!("rename-table", staged.publish_over_orphan(&target)).doing("publish table", &target)?;
    Ok(Some(reference))
}

/// A table that is being written.
struct TableWriter {
    staged: Staged,
    dir: PathBuf,
    encoder: TableEncoder,
    /// The nodes that are not in the file yet.
    buffer: Vec<u8>,
    offset_bytes: u64,
    /// The length of the base table, for an error.
    base_bytes: u64,
}

impl TableWriter {
    const FLUSH_BYTES: usize = 1 << 20;

    fn create(store: &OpenStore, manifest: &Manifest, base: Option<&Table>, dir: &Path) -> Result<Self> {
        let base_bytes = base.map_or(0, |table| table.reference().length_bytes());
        let failed = |e| unwritten("write a table in", dir, base_bytes, e);
        let staged = Staged::create(&store.disk, dir).map_err(failed)?;
        let mut buffer = Vec::new();
        // With room for the nodes that one entry completes.
        resize_discarding(&mut buffer, 2 * Self::FLUSH_BYTES)?;
        buffer.clear();
        let encoder = TableEncoder::new(store.uuid, manifest.bounds());
        Ok(TableWriter { staged, dir: dir.to_owned(), encoder, buffer, offset_bytes: 0, base_bytes })
    }

    /// Adds the entries of a tree of `base` with the changes in `manifest`, and takes those from it.
    fn add<E: Recorded>(&mut self, manifest: &mut Manifest, base: Option<&Table>) -> Result<()> {
        let base = base.map(|table| table.scan::<E>(None)).transpose()?.into_iter().flatten();
        let base = base.map(|entry| entry.map(Recorded::into_parts));
        for entry in Merged::new(base, take(E::changes_mut(manifest)).into_iter()) {
            let (key, record) = entry?;
            let entry = E::of_parts(key, record);
            self.encoder.push(&entry, &mut self.buffer).refused_to("write a table")?;
            if self.buffer.len() >= Self::FLUSH_BYTES {
                let written = self.staged.file().write_all_at(&self.buffer, self.offset_bytes);
                written.map_err(|e| unwritten("write a table in", &self.dir, self.base_bytes, e))?;
                self.offset_bytes += self.buffer.len() as u64;
                self.buffer.clear();
            }
        }
        Ok(())
    }
}

/// Writes the manifest of a generation to `generations/`, where its tags keep it.
pub(super) fn keep_manifest(store: &OpenStore, manifest: &Manifest) -> Result<()> {
    let (target, dir) = (store.paths.kept_manifest(manifest.generation), store.paths.generations_dir());
    let bytes = manifest.without_history().encode().map_err(unencodable)?;
    let failed = |e| unwritten("write a manifest in", &dir, bytes.len() as u64, e);
    let mut staged = Staged::create(&store.disk, &dir).map_err(failed)?;
    staged.file().write_all_at(&bytes, 0).map_err(failed)?;
    step!("sync-kept-manifest", sync_file(store, &staged))?; // otherwise a tag could name an empty manifest
    step!("rename-kept-manifest", staged.publish_over_orphan(&target)).doing("publish manifest", &target)?;
    step!("sync-kept-manifest-name", store.sync_dir(&dir)) // otherwise a tag could name nothing
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
    let pin = Pin::new(staged.file(), staged.path().to_owned()).map_err(failed)?;
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
