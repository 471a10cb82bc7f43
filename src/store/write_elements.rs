//! Writes elements in row-major order, and makes headers for them.

use std::fmt;

use stridemap_format::{DType, Header, RecordKind};

use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::layout;
use crate::storage::StorageKind;
use crate::tensor::{Source, can_be_live};

/// Returns the header of a row-major copy.
pub(super) fn row_major(source: &(impl Source + ?Sized)) -> Result<Header> {
    let names = source.names().into_iter().map(|name| name.map(Into::into));
    layout::contiguous(source.dtype(), &source.size())?.with_dim_names(names).refused_to("names")
}

/// Returns the storage kind to record for elements of this dtype that are changed in place, or `None` for a sealed
/// storage.
pub(super) fn in_place_kind(
    op: fmt::Arguments<'_>,
    kind: StorageKind,
    dtype: DType,
) -> Result<Option<RecordKind>> {
    let why = match kind {
        StorageKind::Sealed => return Ok(None),
        StorageKind::Mutable => return Ok(Some(RecordKind::Mutable)),
        StorageKind::Live if can_be_live(dtype) => {
            return Ok(Some(RecordKind::Live { access_bytes: dtype.itemsize() as u8 }));
        }
        StorageKind::Live => {
            format!(
                "elements of {dtype} cannot be live; those that can are integers of 8 to 64 bits, float16, bfloat16, \
                 float32 and float64"
            )
        }
        StorageKind::External => {
            "an external storage is a file outside the store; choose Mutable or Live, or save the elements as \
             Sealed"
                .to_owned()
        }
    };
    Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: {why}")))
}

/// Calls `write` with a sink, and returns the first error of the sink even if `write` ignores it, because some bytes
/// are then missing.
pub(super) fn write_to_sink<E: From<Error>>(
    mut sink: impl FnMut(&[u8]) -> Result<()>,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<(), E>,
) -> Result<(), E> {
    let mut failure = None;
    let written = write(&mut |bytes| match &failure {
        Some(e) => Err(Error::clone(e)),
        None => sink(bytes).inspect_err(|e| failure = Some(e.clone())),
    });
    failure.map_or(written, |e| Err(e.into()))
}

/// Passes all elements to `write`. They must be `size_bytes` bytes.
pub(super) fn write_elements(
    source: &(impl Source + ?Sized),
    size_bytes: u64,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut written_bytes = 0u64;
    let sink = |bytes: &[u8]| {
        written_bytes = written_bytes.saturating_add(bytes.len() as u64);
        if written_bytes > size_bytes { Ok(()) } else { write(bytes) }
    };
    write_to_sink(sink, |sink| source.write_to(sink))?;
    if written_bytes == size_bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::SizeMismatch,
        format!("the size says {size_bytes} bytes of elements, but the source wrote {written_bytes}"),
    ))
}
