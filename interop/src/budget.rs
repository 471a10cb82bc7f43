//! Limits the memory that a file takes, relative to its length.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// A memory limit for what is built from the text or code of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    limit_bytes: u64,
    left_bytes: u64,
}

/// The number of bytes of memory allowed for each counted byte of a file.
const MEMORY_PER_BYTE: u64 = 8;

/// The length of a file counts towards its memory limit only up to this many times the length of its pickle or headers.
/// A large file with a small pickle does not need much memory.
const COUNTED_FILE_BYTES_PER_BYTE: u64 = 4;

/// The approximate overhead of an allocation.
const ALLOCATION_BYTES: usize = 16;

impl Budget {
    /// Returns the budget for a pickle or headers that take `code_bytes` of a file of `file_bytes`. For any file,
    /// `fixed_bytes` are allowed.
    pub(super) fn of(code_bytes: usize, file_bytes: u64, fixed_bytes: u64) -> Self {
        let counted_bytes = (code_bytes as u64).saturating_mul(COUNTED_FILE_BYTES_PER_BYTE).min(file_bytes);
        let limit_bytes = counted_bytes.saturating_mul(MEMORY_PER_BYTE).saturating_add(fixed_bytes);
        Budget { limit_bytes, left_bytes: limit_bytes }
    }

    /// Takes memory from the budget.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), String> {
        self.left_bytes = self.left_bytes.checked_sub(bytes as u64).ok_or_else(|| {
            format!(
                "what it describes needs more than {} bytes of memory, the limit for a file of its length; save it in \
                 several files, or values of one kind as one tensor",
                self.limit_bytes
            )
        })?;
        Ok(())
    }

    /// Appends to a list. If it must grow, its capacity doubles. Most lists have few items, so the first allocation has
    /// no spare capacity.
    pub(super) fn extend<T: Copy>(&mut self, list: &mut Vec<T>, items: &[T]) -> Result<(), String> {
        let spare = list.capacity();
        self.reserve(list, items.len(), spare)?;
        list.extend_from_slice(items);
        Ok(())
    }

    /// Makes room for `count` more items in a list. If the list must grow, it grows by at least `spare` items, and the
    /// memory is charged before it is allocated.
    pub(super) fn reserve<T>(&mut self, list: &mut Vec<T>, count: usize, spare: usize) -> Result<(), String> {
        let (had, length) = (list.capacity(), list.len().saturating_add(count));
        if length > had {
            let capacity = length.max(had.saturating_add(spare));
            let grown_bytes = capacity.saturating_sub(had).saturating_mul(size_of::<T>());
            self.charge(grown_bytes.saturating_add(ALLOCATION_BYTES))?;
            list.reserve_exact(capacity.saturating_sub(list.len()));
        }
        Ok(())
    }
}
