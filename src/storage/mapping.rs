//! Files mapped into memory: the only unsafe code of this crate.
#![expect(
    unsafe_code,
    reason = "mapping a file is a promise about other processes, which no compiler can check"
)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use memmap2::{Mmap, MmapOptions};

use crate::disk::FileStat;

/// The word of whoever opened the store, by `Store::open_mapped`, that while its files are mapped nobody outside this
/// library's locks writes, truncates or replaces them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapPermit(());

impl MapPermit {
    /// For the bodies of the unsafe functions that state that contract, and nowhere else.
    pub(crate) const fn by_contract_of_the_caller() -> Self {
        MapPermit(())
    }
}

/// The first bytes of a file, mapped read-only and shared with every other process that maps them.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: Mmap,
    file: FileId,
}

/// Device and inode. A live mapping keeps its inode from being given to another file.
type FileId = (u64, u64);

/// One mapping a file and process.
static MAPPINGS: LazyLock<Mutex<HashMap<FileId, Weak<Mapping>>>> = LazyLock::new(Mutex::default);

impl Mapping {
    /// Maps the first `length_bytes` of a file of the given stat, or shares the mapping that stands.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file is shorter: a mapping beyond its end would be a fault when touched.
    pub(crate) fn of(
        file: &File,
        stat: FileStat,
        length_bytes: usize,
        _: MapPermit,
    ) -> io::Result<Arc<Mapping>> {
        if stat.size_bytes < length_bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let id = (stat.device, stat.inode);
        let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = mappings.get(&id).and_then(Weak::upgrade);
        if let Some(mapping) = standing.filter(|mapping| mapping.map.len() >= length_bytes) {
            return Ok(mapping);
        }
        // SAFETY:
        // - in bounds: the file had at least `length_bytes` when `stat` was taken, just after it was opened;
        // - no concurrent write or truncation: sealed bytes are never changed by this library, mutable ones only under
        //   the exclusive lock that excludes the borrower, and by the contract of `MapPermit` nobody else does;
        // - alive: `Mmap` owns the mapping, and every borrow of its bytes borrows the `Mapping`.
        let map = unsafe { MmapOptions::new().len(length_bytes).map(file)? };
        let mapping = Arc::new(Mapping { map, file: id });
        mappings.insert(id, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        if mappings.get(&self.file).is_some_and(|standing| standing.strong_count() == 0) {
            mappings.remove(&self.file);
        }
    }
}
