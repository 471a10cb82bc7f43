//! The dimensions of a header, one by one, and headers made of them.

use std::fmt::Arguments;

use stridemap_format::{DType, Dims, Header};

use super::names::DimName;
use crate::error::{Error, ErrorKind, FormatContext, Result};

/// One dimension of a header. Operations move whole dimensions, so a name stays with its size.
#[derive(Clone, Debug)]
pub(super) struct Dim {
    pub(super) size: usize,
    pub(super) stride: isize,
    pub(super) name: Option<DimName>,
}

impl Dim {
    pub(super) fn new(size: usize, stride: isize) -> Self {
        Dim { size, stride, name: None }
    }
}

pub(super) fn to_dims(header: &Header) -> Vec<Dim> {
    let dims = header.dims().zip(names_of(header));
    dims.map(|((size, stride), name)| Dim { size, stride, name: name.clone() }).collect()
}

/// Returns a header with these dimensions and this dtype.
pub(super) fn of_dims(op: Arguments<'_>, dtype: DType, dims: Vec<Dim>, offset: usize) -> Result<Header> {
    let size: Dims<usize> = dims.iter().map(|dim| dim.size).collect();
    let stride: Dims<isize> = dims.iter().map(|dim| dim.stride).collect();
    let header = Header::new(dtype, size, stride, offset).refused_to(op)?;
    header.with_dim_names(dims.into_iter().map(|dim| dim.name)).refused_to(op)
}

/// Returns this header with other dimensions, and with an offset that is `shift` elements larger.
///
/// An empty view keeps its offset: no element uses it, and a moved offset could be outside the storage.
pub(super) fn with_dims(header: &Header, op: Arguments<'_>, dims: Vec<Dim>, shift: i128) -> Result<Header> {
    let mut offset = header.storage_offset();
    if !dims.iter().any(|dim| dim.size == 0) {
        let moved = shift.checked_add(offset as i128).and_then(|offset| usize::try_from(offset).ok());
        offset = moved.ok_or_else(|| overflow(op))?;
    }
    of_dims(op, header.dtype(), dims, offset)
}

/// Returns the name of each dimension, if it has one.
pub(crate) fn names_of(header: &Header) -> impl Iterator<Item = &Option<DimName>> + Clone {
    let names = header.dim_names().unwrap_or_default();
    names.iter().chain(std::iter::repeat(&None)).take(header.ndim())
}

/// Returns the header of a new tensor: row-major, with offset 0 and without names.
pub(crate) fn contiguous(dtype: DType, size: &[usize]) -> Result<Header> {
    Header::contiguous(dtype, size).refused_to(format_args!("size {size:?}"))
}

/// Returns the header of a row-major copy with this size, and with the names of the original.
pub(crate) fn row_major(of: &Header, dtype: DType, size: &[usize]) -> Result<Header> {
    let header = contiguous(dtype, size)?;
    header.with_dim_names(names_of(of).cloned()).refused_to(format_args!("size {size:?}"))
}

/// Returns the strides to lend to other libraries, which multiply and negate them. A stride that no element uses can
/// have any value in a store. It becomes 1, as in tensors that PyTorch lends.
#[cfg(any(feature = "ndarray", feature = "dlpack"))]
pub(crate) fn strides_with_unused_as_one(header: &Header) -> Vec<isize> {
    let is_empty = header.numel() == 0;
    header.dims().map(|(n, stride)| if n < 2 || is_empty { 1 } else { stride }).collect()
}

pub(super) fn overflow(op: Arguments<'_>) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("{op}: a stride or an offset does not fit in 64 bits"))
}

/// Returns the distance that a number of steps covers, in elements. It cannot overflow: both factors fit in 64 bits.
pub(super) fn distance(steps: usize, stride: isize) -> i128 {
    (steps as i128).saturating_mul(stride as i128)
}
