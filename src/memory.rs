//! Fallible allocation, for sizes that come from data.

use std::hint::black_box;

use crate::error::{Error, ErrorKind, Result};

/// What larger buffers leave for small allocations, which end the process when they fail.
const LEFT_BYTES: usize = 1 << 20;

/// Resizes a buffer. Its bytes are those that it had, or zeros.
///
/// # Errors
/// `LimitExceeded` when there is not so much memory.
pub(crate) fn try_resize(buffer: &mut Vec<u8>, length_bytes: usize) -> Result<()> {
    if buffer.capacity() < length_bytes {
        // Before there is another: the two together may be too much.
        *buffer = Vec::new();
        let mut longer = Vec::new();
        let is_there = longer.try_reserve_exact(length_bytes).is_ok();
        if !is_there || (length_bytes > LEFT_BYTES && !has_memory(LEFT_BYTES)) {
            return Err(out_of_memory(length_bytes));
        }
        *buffer = longer;
    }
    buffer.resize(length_bytes, 0);
    Ok(())
}

/// Whether so much could be had just now.
pub(crate) fn has_memory(length_bytes: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    // Seen by somebody, or the compiler would leave it out.
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
