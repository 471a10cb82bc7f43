//! Checks of the memory that is left.

use std::hint::black_box;

use crate::error::{Error, ErrorKind};

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
