//! Copies of the positions along an axis that a tensor of indices lists.

use stridemap_format::{DType, Header};

use super::stream::for_each_piece;
use super::{Tensor, copy};
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::layout::{self, Axis};

/// The number of runs copied at a time. Their positions take a few MiB.
const PIECE_RUNS: usize = 256 << 10;

impl Tensor {
    /// Selects the positions along an axis that a vector of indices lists, in that order, and copies them to the heap.
    /// The indices are `int64` or `int32`. Unlike the indices of a view, they must not be negative.
    ///
    /// ```
    /// use stridemap::Tensor;
    ///
    /// let x = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], &[3, 2])?;
    /// let rows = x.index_select(0, &Tensor::from_vec(vec![2i64, 0, 2], &[3])?)?;
    /// assert_eq!((rows.size(), rows.read::<f32>()?), (&[3, 2][..], vec![5., 6., 1., 2., 5., 6.]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for an index that is out of range, with its position in the message;
    /// [`ErrorKind::DTypeMismatch`] for indices of a different dtype; [`ErrorKind::SizeMismatch`] unless `index` is a
    /// vector or a single element, and a single index for a tensor without dimensions; [`ErrorKind::OutOfMemory`] if
    /// there is not enough memory; [`ErrorKind::Io`].
    pub fn index_select<'a>(&self, axis: impl Into<Axis<'a>>, index: &Tensor) -> Result<Tensor> {
        let op = format_args!("index_select");
        let axis = layout::resolve_axis(self.header(), op, axis.into())?;
        if !matches!(index.dtype(), DType::I32 | DType::I64) {
            let dtype = index.dtype();
            let why =
                format!("{op}: the indices are {dtype}, not int32 or int64; convert them with to_dtype");
            return Err(Error::new(ErrorKind::DTypeMismatch, why));
        }
        if index.ndim() > 1 || self.ndim() == 0 && index.numel() != 1 {
            let (found, own) = (index.size(), self.size());
            let why = format!("{op}: indices of size {found:?} for size {own:?}; use a vector of indices");
            return Err(Error::new(ErrorKind::SizeMismatch, why));
        }
        // Read once: the indices of a live tensor may change.
        let indices = index.to_dtype(DType::I64)?.read::<i64>()?;
        let steady = self.steady()?;
        // As in PyTorch, a tensor without dimensions has an axis with one position.
        let tensor = if self.ndim() == 0 { steady.view([1])? } else { steady.clone() };
        let count = tensor.size().get(axis).copied().unwrap_or_default();
        let is_wrong = |index: i64| usize::try_from(index).map_or(true, |position| position >= count);
        if let Some(at) = indices.iter().position(|&index| is_wrong(index)) {
            let why = format!(
                "{op}: index {} at position {at} is out of range for axis {axis} with size {count}; indices count from 0",
                indices[at]
            );
            return Err(Error::new(ErrorKind::OutOfRange, why));
        }
        let picked = pick(&tensor, axis, indices)?;
        if self.ndim() == 0 { picked.view(()) } else { Ok(picked) }
    }
}

/// Copies the positions of an axis. A run is a sequence of elements along the last axes that are adjacent in the
/// storage, and are copied together.
fn pick(tensor: &Tensor, axis: usize, indices: Vec<i64>) -> Result<Tensor> {
    let header = tensor.header();
    let mut size = header.size().to_vec();
    size.splice(axis..=axis, [indices.len()]);
    let (mut run_elems, mut rank) = (1, size.len());
    for (n, stride) in header.dims().rev().take(size.len() - axis - 1) {
        if n != 1 && stride != run_elems as isize {
            break;
        }
        (run_elems, rank) = (run_elems * n, rank - 1);
    }
    let new = layout::row_major(header, header.dtype(), &size)?;
    let run_bytes = run_elems * tensor.dtype().itemsize();
    Tensor::filled(new, |mut rest| {
        if rest.is_empty() {
            return Ok(());
        }
        // `first` has one element for each run: that at position 0 of the axis. `steps` has its index.
        let runs = size[..rank].to_vec();
        let mut stride = header.stride()[..rank].to_vec();
        let step = stride.splice(axis..=axis, [0]).sum::<isize>();
        let first = Header::new(header.dtype(), &*runs, stride, header.storage_offset());
        let first = tensor.with_header(first.refused_to("index_select")?);
        let mut stride = vec![0; rank];
        stride[axis] = 1;
        let steps = Header::new(DType::I64, runs, stride, 0).refused_to("index_select")?;
        let steps = Tensor::from_elements(indices, steps);
        for_each_piece(&[first, steps], PIECE_RUNS, &mut |pieces| {
            let [first, steps] = pieces else { return Ok(()) };
            let mut places = offsets(first.header());
            for (place, index) in places.iter_mut().zip(steps.read::<i64>()?) {
                *place = place.wrapping_add_signed(index as isize * step);
            }
            let (out, after) = std::mem::take(&mut rest).split_at_mut(places.len() * run_bytes);
            rest = after;
            copy::gather_places(tensor, &places, run_elems, out)
        })
    })
}

/// Returns the storage position of each element, in row-major order.
fn offsets(header: &Header) -> Vec<usize> {
    header.dims().filter(|&(n, _)| n != 1).fold(vec![header.storage_offset()], |starts, (n, step)| {
        // Unlike `flat_map`, this knows the length of the result.
        let mut offsets = Vec::with_capacity(starts.len() * n);
        for start in starts {
            offsets.extend((0..n as isize).map(|i| start.wrapping_add_signed(i * step)));
        }
        offsets
    })
}
