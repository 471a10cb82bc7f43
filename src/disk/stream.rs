//! Reads of long ranges of a file.

use std::io;
use std::ops::Range;

use super::DiskFile;
use crate::error::Result;

/// Passes a range of a file to `sink`, in order. The outer error is that of a read, the inner one that of `sink`.
pub(crate) fn stream(
    file: &dyn DiskFile,
    range: Range<u64>,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> io::Result<Result<()>> {
    let mut refused = None;
    let streamed = file.stream(range, &mut |bytes| {
        sink(bytes).map_err(|e| {
            refused = Some(e);
            io::Error::other("the bytes were refused")
        })
    });
    match refused {
        Some(e) => Ok(Err(e)),
        None => streamed.map(Ok),
    }
}
