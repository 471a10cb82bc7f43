//! What is in a file of another format, in this store's words: storages, headers over them, and text.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::DType;

use super::FileFormat;
use super::file::{PIECE_BYTES, RawFile};
use crate::error::Result;
use crate::layout::Layout;
use crate::storage::Storage;

/// All that a reader of one format finds, checked against the file. No element has been read.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) format: FileFormat,
    pub(super) storages: Vec<ForeignStorage>,
    /// In the order of the file.
    pub(super) tensors: Vec<ForeignTensor>,
    pub(super) attributes: BTreeMap<String, String>,
    /// The storages are the format's own: each is imported as one, so that tensors share what they shared. Otherwise
    /// every tensor has its bytes for itself, in row-major or column-major order from its offset on.
    pub(super) keeps_storages: bool,
}

/// A flat run of bytes in a file.
#[derive(Clone, Debug)]
pub(super) struct ForeignStorage {
    pub(super) file: Arc<RawFile>,
    pub(super) offset_bytes: u64,
    pub(super) length_bytes: u64,
}

/// A named header over one of the storages.
#[derive(Clone, Debug)]
pub(super) struct ForeignTensor {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
    /// Its index.
    pub(super) storage: usize,
}

impl Contents {
    /// Refuses names that stand twice, and tensors that reach past their storage. What a store cannot have as a name may
    /// become one by a prefix.
    pub(super) fn checked(self, file: &RawFile) -> Result<Self> {
        let mut names = HashSet::new();
        for ForeignTensor { name, dtype, layout, storage } in &self.tensors {
            if !names.insert(name) {
                return Err(file.bad(format!("two tensors are named {name:?}")));
            }
            let length_bytes = self.storages.get(*storage).map_or(0, |storage| storage.length_bytes);
            layout
                .extent(*dtype, length_bytes)
                .map_err(|e| file.bad(format!("tensor {name:?}: {e}")).with_source(e))?;
        }
        Ok(self)
    }

    /// The bytes that are read to import everything.
    pub(super) fn size_bytes(&self) -> u64 {
        let sizes: &mut dyn Iterator<Item = u64> = if self.keeps_storages {
            &mut self.storages.iter().map(|storage| storage.length_bytes)
        } else {
            &mut self.tensors.iter().map(|tensor| (tensor.layout.numel() * tensor.dtype.itemsize()) as u64)
        };
        sizes.fold(0, u64::saturating_add)
    }
}

impl ForeignStorage {
    /// The bytes where they lie, to be read a view at a time.
    pub(super) fn open(&self) -> Arc<Storage> {
        Storage::of_range(self.file.external(), self.offset_bytes, self.length_bytes)
    }

    /// Gives a range of the bytes to `sink`, a piece at a time.
    pub(super) fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut piece = vec![0; (range.end - range.start).min(PIECE_BYTES as u64) as usize];
        let mut at_bytes = range.start;
        while at_bytes < range.end {
            piece.truncate((range.end - at_bytes).min(PIECE_BYTES as u64) as usize);
            self.file.read_at(&mut piece, self.offset_bytes + at_bytes)?;
            sink(&piece)?;
            at_bytes += piece.len() as u64;
        }
        Ok(())
    }
}
