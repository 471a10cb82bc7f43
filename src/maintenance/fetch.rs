//! Reads the storages that a store lacks from the same store elsewhere, on several threads, and verifies them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use stridemap_format::{
    CHUNK_BYTES, Error as FormatError, RecordKind, Rule, Sealer, StorageRecord, full_chunk_count,
};

use super::receive::Receiving;
use crate::disk::Access;
use crate::error::{Context, Error, FormatContext, IoContext, Result};
use crate::generation::{EarlyFiles, Need, Wanted};
use crate::parallel;
use crate::storage::{
    ByteSource, InPlaceContext, Spool, Storage, StorageWriter, Stored, UnverifiedStorage, VerifiedStorage,
    open_whole, zeroed,
};

/// Bytes that were received for a storage that this store has already.
pub(super) struct Spooled {
    pub(super) wanted: Wanted,
    /// Where they are in the spool.
    pub(super) range: Range<u64>,
}

/// Reads storages.
pub(super) struct Fetch<'a> {
    pub(super) receiving: &'a Receiving<'a>,
    pub(super) early: &'a EarlyFiles<'a>,
    pub(super) spool: &'a Spool<'a>,
}

impl Fetch<'_> {
    /// Reads all these storages. New ones get their final names. Returns what was received for others.
    pub(super) fn all(&self, mut wanted: Vec<Wanted>) -> Result<Vec<Spooled>> {
        let Receiving { store, transfer, jobs, .. } = self.receiving;
        // Long ones first, so that no thread is left with one at the end. Short ones stay in the order of their ids, in which
        // they are in the packs of a remote.
        wanted.sort_by_key(|wanted| std::cmp::Reverse(wanted.record.length_bytes / (4 << 20)));
        let threads = parallel::waiting_thread_count(wanted.len().clamp(1, *jobs));
        let queue = Mutex::new(VecDeque::from(wanted));
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let mut spooled = Vec::new();
        parallel::in_order(
            threads,
            |push| (0..threads).try_for_each(push),
            |_| {
                let mut spooled = Vec::new();
                while !transfer.is_stopped()
                    && let Some(wanted) = next()
                {
                    let id = wanted.id;
                    match self.one(wanted).context(format_args!("storage {id:016x}")) {
                        Ok(fetched) => spooled.extend(fetched),
                        Err(e) => transfer.stop(e),
                    }
                }
                spooled
            },
            |fetched: Vec<Spooled>| {
                spooled.extend(fetched);
                Ok::<(), Error>(())
            },
        )?;
        store.record_failure(transfer.outcome())?;
        Ok(spooled)
    }

    fn one(&self, wanted: Wanted) -> Result<Option<Spooled>> {
        let range = match &wanted.need {
            Need::New => {
                self.new_storage(wanted.id, &wanted.record)?;
                return Ok(None);
            }
            Need::Longer(own) => self.longer(wanted.id, &wanted.record, own)?,
            Need::InPlace => self.in_place(wanted.id, &wanted.record)?,
        };
        Ok(Some(Spooled { wanted, range }))
    }

    /// Reads a storage that this store does not have.
    fn new_storage(&self, id: u64, record: &StorageRecord) -> Result<()> {
        let Receiving { store, .. } = self.receiving;
        let (disk, paths, durable) = (&store.disk, &store.paths, store.is_durable());
        let RecordKind::Sealed(sealed) = record.kind else {
            let mut writer = StorageWriter::in_place(record.kind.clone(), disk, paths, durable)?;
            writer.reserve(record.length_bytes)?;
            self.read_in_place(id, record, &mut |bytes| writer.write(bytes))?;
            let staged = writer.finish()?;
            return staged.publish_early(paths, id, |file, target| self.early.publish(file, target));
        };
        if self.is_received(id, record)? {
            return Ok(());
        }
        let mut writer = StorageWriter::sealed(disk, paths, durable)?;
        writer.reserve_address_space(sealed.reserved_bytes);
        writer.reserve(record.length_bytes)?;
        self.read_sealed(id, 0..record.length_bytes, &mut |bytes| writer.write(bytes))?;
        let staged = writer.finish()?;
        if staged.record().kind != record.kind {
            return Err(self.damaged(id));
        }
        staged.publish_early(paths, id, |file, target| self.early.publish(file, target))
    }

    /// Whether a transfer that was killed has left the whole storage.
    fn is_received(&self, id: u64, record: &StorageRecord) -> Result<bool> {
        let Receiving { store, .. } = self.receiving;
        let (disk, paths) = (&*store.disk, &store.paths);
        let has_length =
            |path, length_bytes: u64| disk.stat(path).is_ok_and(|stat| stat.size_bytes == length_bytes);
        let chunk_count = full_chunk_count(record.length_bytes);
        let (bin, sum) = (paths.storage(id), paths.sum(id));
        if !has_length(&bin, record.length_bytes) || chunk_count > 0 && !has_length(&sum, chunk_count * 16) {
            return Ok(false);
        }
        let whole = || {
            let mut storage = VerifiedStorage::open(disk, paths, id, record)?;
            storage.read(0..record.length_bytes, &mut |_| Ok(()))
        };
        match whole() {
            Err(e) if e.rule().is_some() => return Ok(false),
            read => read?,
        }
        for path in [Some(&bin), (chunk_count > 0).then_some(&sum)].into_iter().flatten() {
            if store.is_durable() {
                let synced = disk.open(path, Access::Write).and_then(|file| file.sync());
                synced.syncing("sync storage", path)?;
            }
            if !self.early.note_if_there(path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the bytes after those that this store has. The chain of digests, continued from the record here, must reach
    /// that of the other store.
    fn longer(&self, id: u64, record: &StorageRecord, own: &StorageRecord) -> Result<Range<u64>> {
        let Receiving { store, .. } = self.receiving;
        let (RecordKind::Sealed(before), RecordKind::Sealed(after)) = (&own.kind, &record.kind) else {
            return Err(self.damaged(id));
        };
        let path = store.paths.storage(id);
        let file = open_whole(&*store.disk, &path, own.length_bytes)?;
        let mut tail = zeroed((own.length_bytes % CHUNK_BYTES) as usize)?;
        let tail_offset_bytes = own.length_bytes - tail.len() as u64;
        let read = file.read_exact_at(&mut tail, tail_offset_bytes);
        read.doing("read the end of storage", &path)?;
        let mut sealer = Sealer::resume(before, own.length_bytes, &tail).corrupt_in(&path)?;
        let range = self.spool.reserve(record.length_bytes - own.length_bytes)?;
        let mut at = range.start;
        self.read_sealed(id, own.length_bytes..record.length_bytes, &mut |bytes| {
            sealer.update(bytes, |_| ());
            self.spool.write(bytes, at)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
        match sealer.sealed(after.reserved_bytes) == *after {
            true => Ok(range),
            false => Err(self.damaged(id)),
        }
    }

    /// Reads the bytes of a storage that is changed in place.
    fn in_place(&self, id: u64, record: &StorageRecord) -> Result<Range<u64>> {
        let range = self.spool.reserve(record.length_bytes)?;
        let mut at = range.start;
        self.read_in_place(id, record, &mut |bytes| {
            self.spool.write(bytes, at)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
        Ok(range)
    }

    fn read_sealed(
        &self,
        id: u64,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Receiving { from, transfer, .. } = self.receiving;
        let path = from.paths.storage(id);
        let file = open_whole(&*from.disk, &path, range.end)?;
        let short = || {
            let detail = "the file became shorter while it was read";
            Error::corrupt(&path, FormatError::new(Rule::StorageFile, detail))
        };
        transfer.read((&*file, &path), range, short, sink)
    }

    /// Reads a mutable storage under its shared lock, or a live one while others may change it.
    fn read_in_place(
        &self,
        id: u64,
        record: &StorageRecord,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Receiving { store, from, transfer, .. } = self.receiving;
        let stored = Stored { store: from.uuid, id, record: record.clone() };
        let context = || InPlaceContext::of_a_reader(store.options.lock_wait, store.poison.clone());
        let storage = Storage::open(&from.disk, &from.paths.storage(id), stored, None, context)?;
        let lock = storage.lock_to_read()?;
        let storage = lock.as_ref().map_or(&storage, |lock| &lock.storage);
        if let (true, Some(file)) = (from.disk.never_changes(), storage.file()) {
            // A file of a remote is compared with its digest only if it is read as a whole, with the mark at its end.
            let path = from.paths.storage(id);
            let mut rest_bytes = record.length_bytes;
            let short =
                || Error::corrupt(&path, FormatError::new(Rule::StorageFile, "the file is too short"));
            return transfer.read((&**file, &path), 0..record.file_bytes(), short, &mut |bytes| {
                let elements = bytes.get(..rest_bytes.min(bytes.len() as u64) as usize).unwrap_or(bytes);
                rest_bytes -= elements.len() as u64;
                sink(elements)
            });
        }
        UnverifiedStorage::new(storage).read(0..record.length_bytes, &mut |bytes| {
            sink(bytes)?;
            transfer.note(bytes.len() as u64)
        })
    }

    fn damaged(&self, id: u64) -> Error {
        let detail = "the bytes do not have the digests that the received record states";
        Error::corrupt(&self.receiving.from.paths.storage(id), FormatError::new(Rule::ChunkDigest, detail))
    }
}
