//! Copies the bytes of one storage to another, whole or without the bytes that no tensor reaches.

use std::ops::Range;

use stridemap_format::CHUNK_BYTES;

use crate::error::Result;
use crate::layout::Repacked;
use crate::storage::{Storage, StorageWriter, resize_discarding, zeroed};

/// How many bytes are written between two calls to `progress`.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Receives the bytes of a source, in order.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// The bytes of a storage that is copied.
pub(crate) trait ByteSource {
    /// Passes the bytes of a range to `sink`, at most a chunk at a time.
    fn read(&mut self, range: Range<u64>, sink: Sink<'_>) -> Result<()>;
}

/// Reads a mutable, live or external storage, whose bytes have no digests to verify.
pub(crate) struct UnverifiedStorage<'a> {
    storage: &'a Storage,
    piece: Vec<u8>,
}

impl<'a> UnverifiedStorage<'a> {
    pub(crate) fn new(storage: &'a Storage) -> Self {
        UnverifiedStorage { storage, piece: Vec::new() }
    }
}

impl ByteSource for UnverifiedStorage<'_> {
    fn read(&mut self, range: Range<u64>, sink: Sink<'_>) -> Result<()> {
        let mut start = range.start;
        while start < range.end {
            resize_discarding(&mut self.piece, (range.end - start).min(CHUNK_BYTES) as usize)?;
            self.storage.read_at(&mut self.piece, start)?;
            sink(&self.piece)?;
            start += self.piece.len() as u64;
        }
        Ok(())
    }
}

/// A source of which some ranges, in ascending order, are lost. They read as zeros.
pub(crate) struct Without<'a> {
    pub(crate) source: &'a mut dyn ByteSource,
    pub(crate) lost: &'a [Range<u64>],
}

impl ByteSource for Without<'_> {
    fn read(&mut self, range: Range<u64>, sink: Sink<'_>) -> Result<()> {
        let mut start = range.start;
        while start < range.end {
            let next = self.lost.partition_point(|lost| lost.end <= start);
            match self.lost.get(next).filter(|lost| lost.start < range.end) {
                Some(lost) if lost.start <= start => {
                    let zeros = zeroed((lost.end.min(range.end) - start).min(CHUNK_BYTES) as usize)?;
                    sink(&zeros)?;
                    start += zeros.len() as u64;
                }
                lost => {
                    let end = lost.map_or(range.end, |lost| lost.start);
                    self.source.read(start..end, sink)?;
                    start = end;
                }
            }
        }
        Ok(())
    }
}

/// Returns the bytes of `source` that `repacked` keeps, each at its new offset. They must be few.
///
/// `progress` is called with their number, without the bytes that align them.
pub(crate) fn repacked_bytes(
    source: &mut dyn ByteSource,
    repacked: &Repacked,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<u8>> {
    let (mut kept, mut read_bytes) = (zeroed(repacked.length_bytes as usize)?, 0);
    repacked.each_move(&mut |range, new_start| {
        let mut start = new_start as usize;
        source.read(range, &mut |bytes| {
            let end = start + bytes.len();
            kept.get_mut(start..end).into_iter().for_each(|kept| kept.copy_from_slice(bytes));
            start = end;
            read_bytes += bytes.len() as u64;
            Ok(())
        })
    })?;
    progress(read_bytes);
    Ok(kept)
}

impl StorageWriter {
    /// Writes the bytes of `source` that `repacked` keeps, each at its new offset. Reserves disk space first.
    ///
    /// `progress` is called with the bytes written since the last call.
    pub(crate) fn copy_from(
        &mut self,
        source: &mut dyn ByteSource,
        repacked: &Repacked,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.reserve(repacked.length_bytes)?;
        let mut pending_bytes = 0;
        repacked.each_move(&mut |range, new_start| {
            self.pad_to(new_start)?;
            source.read(range, &mut |bytes| {
                self.write(bytes)?;
                pending_bytes += bytes.len() as u64;
                if pending_bytes >= PROGRESS_BYTES {
                    progress(std::mem::take(&mut pending_bytes));
                }
                Ok(())
            })
        })?;
        progress(pending_bytes);
        Ok(())
    }
}
