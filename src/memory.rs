//! Fallible allocation, for sizes that come from data.

use std::hint::black_box;

use bytemuck::Zeroable;

use crate::error::{Error, ErrorKind, Result};
use crate::storage::prefer_huge_pages;

/// The memory that must stay free after a larger allocation. A small allocation that fails ends the process.
const LEFT_BYTES: usize = 1 << 20;

/// Resizes a buffer without preserving its contents: each byte is either an old byte or zero.
///
/// # Errors
/// `LimitExceeded` if there is not enough memory.
pub(crate) fn resize_discarding(buffer: &mut Vec<u8>, length_bytes: usize) -> Result<()> {
    if buffer.capacity() < length_bytes {
        // Free the old buffer first: both together may not fit.
        *buffer = Vec::new();
        let mut longer = Vec::new();
        let is_allocated = longer.try_reserve_exact(length_bytes).is_ok();
        if !is_allocated || (length_bytes > LEFT_BYTES && !has_memory(LEFT_BYTES)) {
            return Err(out_of_memory(length_bytes));
        }
        *buffer = longer;
    }
    buffer.resize(length_bytes, 0);
    Ok(())
}

/// Returns a vector of zeros.
///
/// # Errors
/// `LimitExceeded` if there is not enough memory.
pub(crate) fn zeroed<T: Zeroable>(count: usize) -> Result<Vec<T>> {
    let mut zeros = bytemuck::allocation::try_zeroed_vec(count)
        .map_err(|()| out_of_memory(count.saturating_mul(size_of::<T>())))?;
    prefer_huge_pages(&mut zeros);
    Ok(zeros)
}

/// Whether `length_bytes` could be allocated now.
pub(crate) fn has_memory(length_bytes: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    // `black_box` keeps the compiler from removing the allocation.
    black_box(&mut probe).try_reserve_exact(length_bytes).is_ok()
}

pub(crate) fn out_of_memory(length_bytes: usize) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!(
            "no memory for {length_bytes} bytes; raise the limit (ulimit -v), or take a part of the tensor"
        ),
    )
}
