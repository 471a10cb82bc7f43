//! Views of the same bytes as elements of a different width.

use std::cmp::Ordering;
use std::fmt::Arguments;

use super::dims::{Dim, of_dims, overflow, to_dims};
use crate::error::{Error, ErrorKind, Result};
use stridemap_format::{DType, Header};

/// Applies PyTorch's rule for a view with a different dtype: the last dimension must be contiguous, and its size
/// changes by the ratio of the widths.
pub(crate) fn view_dtype(header: &Header, dtype: DType) -> Result<Header> {
    let op = format_args!("view({dtype}) of {}", header.dtype());
    let (from_bytes, to_bytes) = (header.dtype().itemsize(), dtype.itemsize());
    let (narrower, wider) = (from_bytes.min(to_bytes), from_bytes.max(to_bytes));
    let ratio = wider.checked_div(narrower).and_then(|ratio| isize::try_from(ratio).ok()).unwrap_or(1);
    let refuse = |why: String| {
        let offset = header.storage_offset();
        Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: {header} and offset {offset}: {why}")))
    };
    match header.stride().last() {
        _ if from_bytes == to_bytes => {
            return of_dims(op, dtype, to_dims(header), header.storage_offset());
        }
        None => {
            return refuse(
                "a tensor without axes cannot change its element width; unsqueeze(-1) adds an axis".into(),
            );
        }
        Some(&stride) if stride != 1 => {
            return refuse(format!(
                "the last stride is {stride}, not 1; contiguous makes a copy with stride 1"
            ));
        }
        _ => {}
    }
    let mut dims = to_dims(header);
    let mut offset = isize::try_from(header.storage_offset()).map_err(|_| overflow(op))?;
    let last = dims.pop();
    let strides = dims.iter_mut().map(|dim| &mut dim.stride).chain([&mut offset]);
    if to_bytes < from_bytes {
        // A product can only overflow if the axis has size 1 or the tensor is empty.
        for stride in strides {
            *stride = stride.saturating_mul(ratio);
        }
    } else {
        for stride in strides {
            if stride.checked_rem(ratio) != Some(0) {
                return refuse(format!(
                    "the offset and all strides but the last must be multiples of {ratio}, but {stride} is \
                     not; clone_data makes a copy that begins at 0"
                ));
            }
            *stride = stride.checked_div(ratio).unwrap_or_default();
        }
    }
    if let Some(Dim { size: n, name, .. }) = last {
        let ratio = ratio.unsigned_abs();
        let size = match to_bytes.cmp(&from_bytes) {
            Ordering::Less => n.checked_mul(ratio),
            _ if n.checked_rem(ratio) == Some(0) => n.checked_div(ratio),
            _ => return refuse(format!("the last size, {n}, is not a multiple of {ratio}")),
        };
        dims.push(Dim { size: size.ok_or_else(|| overflow(op))?, stride: 1, name });
    }
    of_dims(op, dtype, dims, usize::try_from(offset).map_err(|_| overflow(op))?)
}

/// Views complex numbers as pairs of their parts, along a last axis of size 2.
pub(crate) fn view_as_real(header: &Header) -> Result<Header> {
    let op = format_args!("view_as_real");
    let dtype = match header.dtype() {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        other => return Err(mismatch(op, other, "complex64 or complex128")),
    };
    let mut dims = to_dims(header);
    for dim in &mut dims {
        dim.stride = dim.stride.saturating_mul(2);
    }
    dims.push(Dim::new(2, 1));
    let offset = header.storage_offset().checked_mul(2).ok_or_else(|| overflow(op))?;
    of_dims(op, dtype, dims, offset)
}

fn mismatch(op: Arguments<'_>, dtype: DType, expected: &str) -> Error {
    Error::new(ErrorKind::DTypeMismatch, format!("{op}: the elements are {dtype}, not {expected}"))
}

/// Views pairs along the last axis as complex numbers.
pub(crate) fn view_as_complex(header: &Header) -> Result<Header> {
    let op = format_args!("view_as_complex");
    let dtype = match header.dtype() {
        DType::F32 => DType::C64,
        DType::F64 => DType::C128,
        other => return Err(mismatch(op, other, "float32 or float64")),
    };
    let mut dims = to_dims(header);
    let pair = dims.pop().map(|dim| (dim.size, dim.stride));
    // As in PyTorch, the stride of an axis of size 1 is ignored. `view(dtype)` is stricter, in PyTorch and here.
    let is_even = dims.iter().all(|dim| dim.size == 1 || dim.stride.checked_rem(2) == Some(0))
        && header.storage_offset().checked_rem(2) == Some(0);
    if pair != Some((2, 1)) || !is_even {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{op}: {header} and offset {}: the last axis must have size 2 and stride 1, and the other \
                 strides and the offset must be even",
                header.storage_offset()
            ),
        ));
    }
    for dim in &mut dims {
        dim.stride = dim.stride.checked_div(2).unwrap_or_default();
    }
    let offset = header.storage_offset().checked_div(2).unwrap_or_default();
    of_dims(op, dtype, dims, offset)
}
