//! Bytes on the heap. Their size may come from data, so allocation is fallible.

use bytemuck::Zeroable;

use crate::available_memory;
use crate::disk::kept::{self, Kind};
use crate::error::Result;
use crate::storage::map::mapping::prefer_huge_pages;

/// Zeroed bytes on the heap, aligned for every element type.
pub(crate) struct AlignedBytes {
    words: Vec<u128>,
    length_bytes: usize,
}

impl AlignedBytes {
    /// Allocates zeroed bytes.
    ///
    /// # Errors
    /// `OutOfMemory` if there is not enough memory: the size may come from an untrusted header.
    pub(crate) fn zeroed(length_bytes: usize) -> Result<Self> {
        Ok(AlignedBytes { words: zeroed(length_bytes.div_ceil(size_of::<u128>()))?, length_bytes })
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        bytes.split_at_mut(self.length_bytes).0
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words).split_at(self.length_bytes).0
    }
}

/// Resizes a buffer without preserving its contents: each byte is either an old byte or zero.
///
/// # Errors
/// `OutOfMemory` if there is not enough memory.
pub(crate) fn resize_discarding(buffer: &mut Vec<u8>, length_bytes: usize) -> Result<()> {
    if buffer.capacity() < length_bytes {
        // Free the old buffer first: both together may not fit.
        *buffer = Vec::new();
        let allocate = || {
            let mut longer = Vec::new();
            longer.try_reserve_exact(length_bytes).is_ok().then_some(longer)
        };
        *buffer = kept::retry_after_release(
            Kind::Mapping,
            || available_memory::allocate(length_bytes, allocate),
            |_| true,
        )?;
    }
    buffer.resize(length_bytes, 0);
    Ok(())
}

/// Appends bytes to a buffer.
///
/// # Errors
/// `OutOfMemory` if there is not enough memory.
pub(crate) fn extend(buffer: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    let length_bytes = buffer.len().saturating_add(bytes.len());
    if buffer.capacity() < length_bytes {
        available_memory::allocate(length_bytes, || buffer.try_reserve(bytes.len()).ok())?;
    }
    buffer.extend_from_slice(bytes);
    Ok(())
}

/// Returns a vector of zeros.
///
/// # Errors
/// `OutOfMemory` if there is not enough memory.
pub(crate) fn zeroed<T: Zeroable>(count: usize) -> Result<Vec<T>> {
    let length_bytes = count.saturating_mul(size_of::<T>());
    let allocate = || bytemuck::allocation::try_zeroed_vec(count).ok();
    let allocate = || available_memory::allocate(length_bytes, allocate);
    let mut zeros = kept::retry_after_release(Kind::Mapping, allocate, |_| true)?;
    prefer_huge_pages(&mut zeros);
    Ok(zeros)
}
