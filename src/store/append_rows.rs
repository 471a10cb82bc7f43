//! Rows to append: checked, copied and written.

use stridemap_format::limits::MAX_STORAGE_BYTES;
use stridemap_format::{CHUNK_BYTES, DType, Header, TensorRecord};

use super::write_elements::write_elements;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout;
use crate::storage::{Growth, extend};
use crate::tensor::Source;

/// Rows that fit in memory, copied from a source. They can be written while the writers' lock is held. The source
/// itself must not be read then, because it may wait for another lock.
pub(super) struct ShortRows {
    dtype: DType,
    size: Vec<usize>,
    bytes: Vec<u8>,
}

impl ShortRows {
    /// Returns `None` for no rows, and for rows of a chunk or more.
    pub(super) fn of(source: &(impl Source + ?Sized)) -> Result<Option<Self>> {
        let (dtype, size) = (source.dtype(), source.size());
        let size_bytes = size.iter().try_fold(dtype.itemsize(), |bytes, &n| bytes.checked_mul(n));
        let Some(size_bytes) = size_bytes.filter(|&bytes| 0 < bytes && (bytes as u64) < CHUNK_BYTES) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        write_elements(source, size_bytes as u64, |piece| extend(&mut bytes, piece))?;
        Ok(Some(ShortRows { dtype, size, bytes }))
    }
}

impl Source for ShortRows {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn size(&self) -> Vec<usize> {
        self.size.clone()
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        sink(&self.bytes)
    }
}

/// Writes the elements of a source to a storage that grows. Sets `failure` if they are not all written.
pub(super) fn write_rows(
    op: &str,
    growth: &mut Growth,
    (source, size_bytes): (&(impl Source + ?Sized), u64),
    failure: &mut Option<Error>,
) -> Result<()> {
    // This stays set if the source panics.
    *failure = Some(Error::new(ErrorKind::InvalidArgument, format!("{op}: the source panicked")));
    let written = growth
        .reserve(size_bytes)
        .and_then(|()| write_elements(source, size_bytes, |bytes| growth.write(bytes)));
    let written = written.context(op);
    *failure = written.as_ref().err().cloned();
    written
}

/// Checks that the rows of a source fit the tensor, and returns their number.
pub(super) fn check_rows(op: &str, record: &TensorRecord, source: &(impl Source + ?Sized)) -> Result<usize> {
    check_row_size(op, record, source.dtype(), &source.size())
}

/// Checks that rows of this dtype and size fit the tensor, and returns their number.
pub(super) fn check_row_size(op: &str, record: &TensorRecord, dtype: DType, size: &[usize]) -> Result<usize> {
    let header = &record.header;
    if dtype != header.dtype() {
        let own = header.dtype();
        let message = format!("{op}: the rows are {dtype}, but the tensor is {own}; convert the rows first");
        return Err(Error::new(ErrorKind::DTypeMismatch, message));
    }
    match (size.split_first(), header.size().split_first()) {
        (Some((&rows, row)), Some((_, expected))) if row == expected => Ok(rows),
        (_, None) => {
            let message = format!(
                "{op}: the rows have size {size:?}, but the tensor has no dimensions, and therefore no rows"
            );
            Err(Error::new(ErrorKind::SizeMismatch, message))
        }
        _ => {
            let message = format!(
                "{op}: the rows have size {size:?}, but the tensor has size {:?}; all sizes except that of \
                 dimension 0 must be equal",
                header.size()
            );
            Err(Error::new(ErrorKind::SizeMismatch, message))
        }
    }
}

pub(super) fn row_count(record: &TensorRecord) -> usize {
    record.header.size().first().copied().unwrap_or_default()
}

/// Returns the record with `rows` more rows, and the size of those rows in bytes.
pub(super) fn grown_record(op: &str, record: &TensorRecord, rows: usize) -> Result<(TensorRecord, u64)> {
    let header = &record.header;
    let too_large = || {
        let (size, dtype) = (header.size(), header.dtype());
        let message = format!("{op}: {rows} rows are too many to append to size {size:?} of {dtype}");
        Error::new(ErrorKind::LimitExceeded, message)
    };
    let mut size = header.size().to_vec();
    let first = size.first_mut().ok_or_else(too_large)?;
    *first = first.checked_add(rows).ok_or_else(too_large)?;
    let grown = layout::row_major(header, header.dtype(), &size).context(op)?;
    let grown = grown.with_storage_offset(header.storage_offset());
    match end_bytes(&grown) {
        Some(end) if end <= MAX_STORAGE_BYTES => {
            let size_bytes = (grown.nbytes() - header.nbytes()) as u64;
            Ok((TensorRecord { header: grown.into(), storage_id: record.storage_id }, size_bytes))
        }
        _ => Err(too_large()),
    }
}

/// Returns the end of a contiguous tensor in its storage, in bytes.
pub(super) fn end_bytes(header: &Header) -> Option<u64> {
    let end_elems = header.storage_offset().checked_add(header.numel())?;
    end_elems.checked_mul(header.dtype().itemsize()).map(|end| end as u64)
}
