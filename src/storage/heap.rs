//! Bytes on the heap.

use crate::error::Result;
use crate::memory::zeroed;

/// Zeroed bytes on the heap, aligned for every element type.
pub(crate) struct AlignedBytes {
    words: Vec<u128>,
    length_bytes: usize,
}

impl AlignedBytes {
    /// Allocates zeroed bytes.
    ///
    /// # Errors
    /// `LimitExceeded` if there is not enough memory: the size may come from an untrusted header.
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
