//! Appending to a tensor that cannot grow where it is, because other bytes follow it in its storage.

use std::ops::Range;

use stridemap_format::{RecordKind, TensorRecord};

use super::append_rows::{check_rows, end_bytes, grown_record, row_count};
use super::transaction::Transaction;
use super::write_elements::write_elements;
use crate::error::{Context, Error, Result};
use crate::generation::{Change, Changes};
use crate::storage::{ByteSource, OWN_STORAGE_BYTES, StagedStorage, StorageWriter, VerifiedStorage};
use crate::tensor::Source;

impl Transaction<'_> {
    /// Whether an append must copy a tensor: what follows it in its storage are bytes that no tensor reaches, or other
    /// tensors that share a storage with it because it is small, and nothing else prevents it from growing. The former is so
    /// after a restore, if an earlier or a later generation has more rows: those bytes may be needed there.
    pub(super) fn must_copy_to_append(&self, op: &str, name: &str, record: &TensorRecord) -> Result<bool> {
        let (id, header) = (record.storage_id, &record.header);
        if Changes::staged_index(id).is_some() {
            return Ok(self.append_copies.contains(&id));
        }
        if self.growths.contains_key(&id) || !header.is_contiguous() {
            return Ok(false);
        }
        let storage = self.storage_record(op, id)?;
        let Some(end_bytes) = end_bytes(header).filter(|&end| end < storage.length_bytes) else {
            return Ok(false);
        };
        if !matches!(storage.kind, RecordKind::Sealed(_)) {
            return Ok(false);
        }
        if self.follower(name, id, storage.length_bytes)?.is_none() {
            return Ok(true);
        }
        let is_small = (header.nbytes() as u64) < OWN_STORAGE_BYTES;
        Ok(is_small && !self.is_within_another(name, (id, end_bytes), storage.length_bytes)?)
    }

    /// Whether a tensor that ends here in a storage ends within a different one: then it is a view of some of its rows, and
    /// could not grow if nothing else were in the storage, either.
    fn is_within_another(&self, name: &str, (id, end_bytes): (u64, u64), length_bytes: u64) -> Result<bool> {
        for entry in self.draft.tensors("")? {
            let (other_name, other) = entry?;
            if other.storage_id == id
                && other_name != name
                && let Ok(extent) = other.header.extent(length_bytes)
                && extent.start_bytes() < end_bytes
                && end_bytes < extent.end_bytes()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies a tensor to a new storage, with rows appended to it. A damaged chunk of the tensor is an error: a new digest
    /// would hide the damage.
    pub(super) fn append_to_copy(
        &mut self,
        op: &str,
        name: &str,
        record: TensorRecord,
        source: Option<&(impl Source + ?Sized)>,
    ) -> Result<Range<usize>> {
        let rows = source.map_or(Ok(0), |source| check_rows(op, &record, source))?;
        let (to, added_bytes) = grown_record(op, &record, rows)?;
        let source = source.map(|source| (source, added_bytes));
        let staged = self.copy_with_rows(op, name, &record, source);
        let staged = self.record_failure(staged.context(op))?;
        let storage_id = match Changes::staged_index(record.storage_id) {
            // The rows of the copy before are at the start of this one, so names that refer to it stay valid.
            Some(index) => {
                self.staged.replace(index, staged);
                record.storage_id
            }
            None => self.stage_finished(staged),
        };
        self.append_copies.insert(storage_id);
        let header = (*to.header).clone().with_storage_offset(0).into();
        let new_rows = row_count(&record)..row_count(&to);
        let to = TensorRecord { header, storage_id };
        self.apply(Change::Grow { name: name.to_owned(), from: record, to })?;
        Ok(new_rows)
    }

    fn copy_with_rows(
        &self,
        op: &str,
        name: &str,
        record: &TensorRecord,
        source: Option<(&(impl Source + ?Sized), u64)>,
    ) -> Result<StagedStorage> {
        let (id, store, own_bytes) = (record.storage_id, &self.loader.store, record.header.nbytes() as u64);
        let mut writer = match Changes::staged_index(id) {
            // It was copied in this transaction, and has no digests on disk yet.
            Some(index) => {
                let mut writer = StorageWriter::sealed(&store.disk, &store.paths, store.is_durable())?;
                if let Some(copy) = self.staged.finished(index)
                    && let RecordKind::Sealed(sealed) = &copy.record().kind
                {
                    writer.reserve_address_space(sealed.reserved_bytes);
                }
                write_elements(&self.tensor(name, record)?, own_bytes, |bytes| writer.write(bytes))?;
                writer
            }
            None => {
                let storage = self.storage_record(op, id)?;
                let extent = record.header.extent(storage.length_bytes);
                let extent = extent.map_err(|e| Error::corrupt(&store.paths.storage(id), e))?;
                let mut old = VerifiedStorage::open(&*store.disk, &store.paths, id, &storage)?;
                let mut writer = old.start_copy(&store.disk, &store.paths, store.is_durable())?;
                writer.reserve(own_bytes)?;
                old.read(extent.start_bytes()..extent.end_bytes(), &mut |bytes| writer.write(bytes))?;
                writer
            }
        };
        if let Some((source, added_bytes)) = source {
            writer.reserve(added_bytes)?;
            write_elements(source, added_bytes, |bytes| writer.write(bytes))?;
        }
        writer.finish()
    }
}
