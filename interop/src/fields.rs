//! The fields of a structured array that are copied, each as an array of its own. If they are many, one pass over the
//! records collects all of them in an unnamed file, because a pass for each would read the array that many times.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use stridemap::{Error, Result};

use super::file::{PIECE_BYTES, zeroed};
use super::foreign_storage::{Field, ForeignStorage};

/// The maximum number of fields for which each is read in a pass of its own.
const MAX_PASSES: usize = 2;

/// The fields of an array that one pass collects.
#[derive(Debug)]
pub(super) struct Fields {
    fields: Vec<Field>,
    /// The bytes of the first field in all records, then those of the second, and so on.
    collected: Mutex<Option<Arc<File>>>,
}

impl Fields {
    /// Returns `None` if there are few enough to read each in a pass of its own.
    pub(super) fn of(fields: Vec<Field>) -> Option<Arc<Self>> {
        let are_many = fields.len() > MAX_PASSES;
        are_many.then(|| Arc::new(Fields { fields, collected: Mutex::default() }))
    }

    /// Passes a range of the bytes of one of the fields to `sink`, in pieces, with the bytes of each unit reversed.
    pub(super) fn read(
        &self,
        field: Field,
        records: &ForeignStorage,
        range: Range<u64>,
        swap_unit_bytes: usize,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let file = self.collected(records)?;
        let start = field.start_in_file(records);
        let mut piece = zeroed((range.end - range.start).min(PIECE_BYTES as u64) as usize)?;
        let mut at = range.start;
        while at < range.end {
            piece.truncate((range.end - at).min(PIECE_BYTES as u64) as usize);
            file.read_exact_at(&mut piece, start + at).map_err(|e| failed(records, e))?;
            if swap_unit_bytes > 1 {
                piece.chunks_exact_mut(swap_unit_bytes).for_each(<[u8]>::reverse);
            }
            sink(&piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn collected(&self, records: &ForeignStorage) -> Result<Arc<File>> {
        let mut collected = self.collected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*collected {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(self.collect(records)?);
        *collected = Some(Arc::clone(&file));
        Ok(file)
    }

    fn collect(&self, records: &ForeignStorage) -> Result<File> {
        let file = tempfile::tempfile().map_err(|e| failed(records, e))?;
        let (mut at, mut part) = (0u64, Vec::new());
        records.read(0..records.length_bytes, &mut |bytes| {
            for field in &self.fields {
                part.clear();
                field.gather(at, bytes, &mut part);
                if !part.is_empty() {
                    let offset = field.start_in_file(records) + field.bytes_before(at);
                    file.write_all_at(&part, offset).map_err(|e| failed(records, e))?;
                }
            }
            at += bytes.len() as u64;
            Ok(())
        })?;
        Ok(file)
    }
}

impl Field {
    /// Returns where the collected bytes of this field begin.
    fn start_in_file(&self, records: &ForeignStorage) -> u64 {
        let record_count = records.length_bytes.checked_div(self.record_bytes as u64).unwrap_or(0);
        self.earlier_bytes as u64 * record_count
    }

    /// Returns the number of bytes of this field before a position in the records.
    fn bytes_before(&self, position: u64) -> u64 {
        let [record, offset, length] =
            [self.record_bytes, self.offset_bytes, self.length_bytes].map(|n| n as u64);
        position / record * length + (position % record).saturating_sub(offset).min(length)
    }

    /// Appends the bytes of this field that are in these bytes of the records, which begin at the position `at`.
    fn gather(&self, at: u64, bytes: &[u8], out: &mut Vec<u8>) {
        let [record, offset, length] =
            [self.record_bytes, self.offset_bytes, self.length_bytes].map(|n| n as u64);
        let end = at + bytes.len() as u64;
        let mut start = at / record * record + offset;
        while start < end {
            let [from, to] = [start, start + length].map(|position| (position.clamp(at, end) - at) as usize);
            out.extend_from_slice(bytes.get(from..to).unwrap_or_default());
            start += record;
        }
    }
}

fn failed(records: &ForeignStorage, e: std::io::Error) -> Error {
    Error::io("use a temporary file (see TMPDIR) for", records.file.path(), e)
}
