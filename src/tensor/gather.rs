//! Copies by a tensor of indices: `index_select`, `gather`, and their in-place counterparts.

use std::borrow::Cow;

use stridemap_format::DType;

use super::element::sealed::Sealed as _;
use super::in_place::load_into;
use super::stream::for_each_piece;
use super::{ExclusiveGuard, Operand, Tensor, copy};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Axis, Layout};
use crate::storage::resize_discarding;

/// The number of elements looked up at a time. Their positions take a few MiB.
const PIECE_ELEMS: usize = 256 << 10;

/// Lookup of elements by a tensor of `int64` indices. Unlike the indices of a view, they must not be negative.
///
/// Errors common to these methods: [`ErrorKind::OutOfRange`] for an index that is out of range, with its position in
/// the message; [`ErrorKind::DTypeMismatch`] for indices of a different dtype; [`ErrorKind::SizeMismatch`];
/// [`ErrorKind::OutOfMemory`] if there is not enough memory; [`ErrorKind::Io`].
impl Tensor {
    /// Selects the positions along an axis that a vector of indices lists, in that order, and copies them to the heap.
    /// The indices may also be `int32`.
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
    /// The errors listed above; [`ErrorKind::SizeMismatch`] unless `index` is a vector or a single element. A tensor
    /// without dimensions takes exactly one index.
    pub fn index_select<'a>(&self, axis: impl Into<Axis<'a>>, index: &Tensor) -> Result<Tensor> {
        let (steady, index) = (self.steady()?, index.steady()?);
        let indices =
            Indices::per_position(&steady, "index_select", axis.into(), &index, &[DType::I32, DType::I64])?;
        let mut size = indices.tensor.size().to_vec();
        size.splice(indices.axis..=indices.axis, [indices.index.numel()]);
        let picked = indices.expand_to_runs(&size)?.look_up(&size)?;
        if self.ndim() == 0 { picked.view(()) } else { Ok(picked) }
    }

    /// Copies one element per index to the heap. Along `axis`, the element is at the position that the index states;
    /// along the other axes, it is at the position where the index is: `out[i][j] = x[index[i][j]][j]` for axis 0 of
    /// two.
    ///
    /// ```
    /// use stridemap::Tensor;
    ///
    /// let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// let index = Tensor::from_vec(vec![0i64, 0, 1, 0], &[2, 2])?;
    /// assert_eq!(x.gather(1, &index)?.read::<i32>()?, [1, 1, 4, 3]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors listed above; [`ErrorKind::SizeMismatch`] unless `index` has as many axes as the tensor, and is no
    /// larger than the tensor along every axis but `axis`.
    pub fn gather<'a>(&self, axis: impl Into<Axis<'a>>, index: &Tensor) -> Result<Tensor> {
        let (steady, index) = (self.steady()?, index.steady()?);
        let indices = Indices::per_element(&steady, "gather", axis.into(), &index)?;
        let found = indices.look_up(indices.index.size())?;
        if index.ndim() == 0 { found.view(()) } else { Ok(found) }
    }
}

/// In-place changes of elements that are selected by a tensor of `int64` indices.
///
/// Errors common to these methods: those of [`Tensor::index_select`], before anything is changed;
/// [`ErrorKind::DTypeMismatch`] unless the source has the dtype of the tensor; [`ErrorKind::Overlapping`] if the tensor
/// is a view that contains an element twice. If the indices select an element twice, the last value wins.
impl ExclusiveGuard<'_> {
    /// Copies each position of `source` along an axis to the position that a vector of indices lists for it.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store, Tensor};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let x = store.create_tensor("x", DType::F32, &[3, 2], StorageKind::Mutable)?;
    /// let rows = Tensor::from_vec(vec![1f32, 2., 3., 4.], &[2, 2])?;
    /// x.lock_exclusive()?.index_copy_(0, &Tensor::from_vec(vec![2i64, 0], &[2])?, &rows)?;
    /// assert_eq!(x.read::<f32>()?, [3., 4., 0., 0., 1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors listed above; [`ErrorKind::SizeMismatch`] unless `source` has the size of the tensor, with one
    /// position per index along the axis.
    pub fn index_copy_<'a>(
        &mut self,
        axis: impl Into<Axis<'a>>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<&mut Self> {
        let op = "index_copy_";
        self.check_writable(op)?;
        check_source_dtype(op, self, source)?;
        let (index, source) = (self.operand(index)?, self.operand(source)?);
        let indices =
            Indices::per_position(self, op, axis.into(), &self.copy_if_overlapping(&index)?, &[DType::I64])?;
        let source = at_least_a_vector(&self.copy_if_overlapping(&source)?)?;
        let mut size = indices.tensor.size().to_vec();
        size.splice(indices.axis..=indices.axis, [indices.index.numel()]);
        if source.size() != size {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!("{op}: the source has size {:?}, but {size:?} is needed", source.size()),
            ));
        }
        indices.expand_to_runs(&size)?.put(self, Some(&source), &[])?;
        Ok(self)
    }

    /// Writes one element per index. Along `axis`, it is written to the position that the index states; along the other
    /// axes, to the position where the index is: `x[index[i][j]][j] = source[i][j]` for axis 0 of two. If the source is
    /// a number, it is written to every selected element.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store, Tensor};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let one_hot = store.create_tensor("one_hot", DType::F32, &[2, 3], StorageKind::Mutable)?;
    /// one_hot.lock_exclusive()?.scatter_(1, &Tensor::from_vec(vec![2i64, 0], &[2, 1])?, 1)?;
    /// assert_eq!(one_hot.read::<f32>()?, [0., 0., 1., 1., 0., 0.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors listed above; [`ErrorKind::SizeMismatch`] unless `index` has as many axes as the tensor and the
    /// source, is no larger than the source along any axis, and no larger than the tensor along every axis but
    /// `axis`; [`ErrorKind::OutOfRange`] if the dtype cannot hold the number.
    pub fn scatter_<'a, 'o>(
        &mut self,
        axis: impl Into<Axis<'a>>,
        index: &Tensor,
        source: impl Into<Operand<'o>>,
    ) -> Result<&mut Self> {
        let op = "scatter_";
        self.check_writable(op)?;
        let index = self.operand(index)?;
        let indices = Indices::per_element(self, op, axis.into(), &self.copy_if_overlapping(&index)?)?;
        match source.into() {
            Operand::Number(number) => {
                let element = number.encode(self.dtype()).map_err(|e| e.context(op))?;
                indices.put(self, None, element.split_at(self.dtype().itemsize()).0)?;
            }
            Operand::Tensor(source) => {
                check_source_dtype(op, self, source)?;
                let source = self.operand(source)?;
                let source = at_least_a_vector(&self.copy_if_overlapping(&source)?)?;
                if indices.index.numel() > 0 {
                    check_index_size(op, &indices.index, "source", &source, None)?;
                    // A larger source contributes its first elements.
                    let layout = Layout::new(
                        indices.index.size().to_vec(),
                        source.stride().to_vec(),
                        source.storage_offset(),
                    )?;
                    indices.put(self, Some(&source.with_layout(source.dtype(), layout)), &[])?;
                }
            }
        }
        Ok(self)
    }
}

/// Checked indices of positions along an axis of a tensor.
struct Indices {
    op: &'static str,
    tensor: Tensor,
    axis: usize,
    index: Tensor,
    /// The number of elements that each index selects. They are adjacent in the storage.
    run_elems: usize,
}

impl Indices {
    /// Takes one index per selected position of the axis; it applies to all positions of the other axes.
    fn per_position(
        tensor: &Tensor,
        op: &'static str,
        axis: Axis<'_>,
        index: &Tensor,
        dtypes: &[DType],
    ) -> Result<Self> {
        let axis = tensor.layout().axis(format_args!("{op}"), axis)?;
        check_index_dtype(op, index, dtypes)?;
        if index.ndim() > 1 || tensor.ndim() == 0 && index.numel() != 1 {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!(
                    "{op}: indices of size {:?} for size {:?}; use a vector of indices",
                    index.size(),
                    tensor.size()
                ),
            ));
        }
        Indices {
            op,
            tensor: at_least_a_vector(tensor)?,
            axis,
            index: at_least_a_vector(index)?,
            run_elems: 1,
        }
        .checked()
    }

    /// Takes one index per element of the result.
    fn per_element(tensor: &Tensor, op: &'static str, axis: Axis<'_>, index: &Tensor) -> Result<Self> {
        let axis = tensor.layout().axis(format_args!("{op}"), axis)?;
        check_index_dtype(op, index, &[DType::I64])?;
        let (tensor, index) = (at_least_a_vector(tensor)?, at_least_a_vector(index)?);
        if index.numel() > 0 {
            check_index_size(op, &index, "tensor", &tensor, Some(axis))?;
        }
        Indices { op, tensor, axis, index, run_elems: 1 }.checked()
    }

    /// Checks all indices before anything is changed.
    fn checked(self) -> Result<Self> {
        let (count, mut before) = (self.count(), 0);
        for_each_piece(std::slice::from_ref(&self.index), PIECE_ELEMS, &mut |pieces| {
            for indices in pieces.iter().map(read_indices) {
                let indices = indices?;
                let wrong =
                    indices.iter().enumerate().find(|&(_, &index)| position_of(index, count).is_none());
                if let Some((at, index)) = wrong {
                    return Err(Error::new(
                        ErrorKind::OutOfRange,
                        format!(
                            "{}: index {index} at position {} is out of range for axis {} with size {count}; \
                             indices count from 0",
                            self.op,
                            before + at,
                            self.axis,
                        ),
                    ));
                }
                before += indices.len();
            }
            Ok(())
        })?;
        Ok(self)
    }

    fn count(&self) -> usize {
        self.tensor.size().get(self.axis).copied().unwrap_or(0)
    }

    /// Expands the indices to the selected runs: an index is repeated for each run at its position. A run is a sequence
    /// of elements along the last axes that are adjacent in the storage, and are copied together.
    fn expand_to_runs(self, size: &[usize]) -> Result<Self> {
        let (mut run_elems, mut rank) = (1, size.len());
        for (n, stride) in self.tensor.layout().dims().rev().take(size.len() - self.axis - 1) {
            if n != 1 && stride != run_elems as isize {
                break;
            }
            (run_elems, rank) = (run_elems * n, rank - 1);
        }
        let mut stride = vec![0; rank];
        stride.splice(self.axis..=self.axis, self.index.stride().iter().copied());
        let layout =
            Layout::new(size.iter().copied().take(rank).collect(), stride, self.index.storage_offset())?;
        Ok(Indices { index: self.index.with_layout(self.index.dtype(), layout), run_elems, ..self })
    }

    /// Calls `body` with at most `limit` indices at a time: with the storage positions of the selected runs and the
    /// matching piece of `source`.
    fn for_each_run_piece(
        &self,
        source: Option<&Tensor>,
        limit: usize,
        mut body: impl FnMut(&[usize], Option<&Tensor>) -> Result<()>,
    ) -> Result<()> {
        if self.index.numel() == 0 || self.run_elems == 0 {
            return Ok(());
        }
        // `first` is a view in which every element is at position 0 of the axis. An index is the number of steps from
        // there.
        let layout = self.tensor.layout();
        let mut stride: Vec<isize> = layout.stride().iter().copied().take(self.index.ndim()).collect();
        let step = stride.splice(self.axis..=self.axis, [0]).sum::<isize>();
        let count = self.count();
        let first = Layout::new(self.index.size().to_vec(), stride, layout.offset())?;
        let mut views = vec![self.index.clone(), self.tensor.with_layout(self.tensor.dtype(), first)];
        // `source` may have more axes than the indices: those of the runs. Pieces are cut along the first axes, so they
        // still match.
        views.extend(source.cloned());
        for_each_piece(&views, limit, &mut |pieces| {
            let [index, first, source @ ..] = pieces else { return Ok(()) };
            let mut places = offsets(first.layout());
            for (place, &index) in places.iter_mut().zip(&*read_indices(index)?) {
                let position = position_of(index, count).ok_or_else(|| changed_indices(self.op))?;
                *place = place.wrapping_add_signed(position as isize * step);
            }
            body(&places, source.first())
        })
    }

    /// Returns the layout of a new result, with the dimension names of the tensor.
    fn result_layout(&self, size: &[usize]) -> Result<Layout> {
        Ok(Layout::contiguous(size)?.named(self.tensor.layout().names().cloned()))
    }

    /// Copies the selected elements to the heap, as a tensor of this size.
    fn look_up(&self, size: &[usize]) -> Result<Tensor> {
        let run_bytes = self.run_elems * self.tensor.dtype().itemsize();
        Tensor::filled(self.tensor.dtype(), self.result_layout(size)?, |mut rest| {
            self.for_each_run_piece(None, PIECE_ELEMS, |places, _| {
                let (out, after) = std::mem::take(&mut rest).split_at_mut(places.len() * run_bytes);
                rest = after;
                copy::gather_places(&self.tensor, places, self.run_elems, out)
            })
        })
    }

    /// Writes `source` to the selected elements, or `element` to all of them if there is no source.
    fn put(&self, guard: &mut ExclusiveGuard<'_>, source: Option<&Tensor>, element: &[u8]) -> Result<()> {
        let mut bytes = Vec::new();
        self.for_each_run_piece(source, PIECE_ELEMS / self.run_elems.max(1), |places, source| {
            match source {
                // A single run is longer than a piece, so it is copied without a buffer of its size.
                Some(source) if self.run_elems > PIECE_ELEMS => {
                    let stride = Layout::contiguous(source.size())?.stride().to_vec();
                    let start = places.first().copied().unwrap_or_default();
                    let layout = Layout::new(source.size().to_vec(), stride, start)?;
                    let run = self.tensor.with_layout(self.tensor.dtype(), layout);
                    return guard.at(&run)?.copy_same_size(self.op, source.clone());
                }
                Some(source) => {
                    resize_discarding(&mut bytes, source.nbytes())?;
                    copy::gather(source, &mut bytes)?;
                }
                None => bytes = element.repeat(places.len()),
            }
            let (_, storage) = guard.parts();
            copy::scatter_places(&bytes, self.tensor.dtype().itemsize(), places, self.run_elems, storage)
        })
    }
}

/// Returns the position that an index along an axis of size `count` states.
fn position_of(index: i64, count: usize) -> Option<usize> {
    usize::try_from(index).ok().filter(|&position| position < count)
}

/// Returns the storage position of each element, in row-major order.
fn offsets(layout: &Layout) -> Vec<usize> {
    layout.dims().filter(|&(n, _)| n != 1).fold(vec![layout.offset()], |starts, (n, step)| {
        // Unlike `flat_map`, this knows the length of the result.
        let mut offsets = Vec::with_capacity(starts.len() * n);
        for start in starts {
            offsets.extend((0..n as isize).map(|i| start.wrapping_add_signed(i * step)));
        }
        offsets
    })
}

/// Borrows the indices if they are `int64` and adjacent in memory, and otherwise copies them.
fn read_indices(index: &Tensor) -> Result<Cow<'_, [i64]>> {
    if index.dtype() == DType::I64
        && let Some(indices) = index.borrow_bytes().and_then(i64::borrow)
    {
        return Ok(Cow::Borrowed(indices));
    }
    let mut indices = i64::zeros(index.numel())?;
    load_into(index, DType::I64, &mut Vec::new(), bytemuck::cast_slice_mut(&mut indices))?;
    Ok(Cow::Owned(indices))
}

/// Treats a tensor without dimensions as a vector of one element, as PyTorch's indexing does.
fn at_least_a_vector(tensor: &Tensor) -> Result<Tensor> {
    if tensor.ndim() == 0 { tensor.view([1]) } else { Ok(tensor.clone()) }
}

fn check_index_dtype(op: &str, index: &Tensor, dtypes: &[DType]) -> Result<()> {
    if dtypes.contains(&index.dtype()) {
        return Ok(());
    }
    let allowed: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
    Err(Error::new(
        ErrorKind::DTypeMismatch,
        format!(
            "{op}: the indices are {}, not {}; convert them with to_dtype",
            index.dtype(),
            allowed.join(" or ")
        ),
    ))
}

fn check_source_dtype(op: &str, tensor: &Tensor, source: &Tensor) -> Result<()> {
    if source.dtype() == tensor.dtype() {
        return Ok(());
    }
    let (own, theirs) = (tensor.dtype(), source.dtype());
    Err(Error::new(
        ErrorKind::DTypeMismatch,
        format!("{op}: the source is {theirs}, but the tensor is {own}; convert the source with to_dtype"),
    ))
}

/// Checks that the indices are no larger than a tensor along every axis except `ignored_axis`.
fn check_index_size(
    op: &str,
    index: &Tensor,
    what: &str,
    tensor: &Tensor,
    ignored_axis: Option<usize>,
) -> Result<()> {
    let fits = |(axis, (n, most)): (usize, (&usize, &usize))| Some(axis) == ignored_axis || n <= most;
    if index.ndim() == tensor.ndim() && index.size().iter().zip(tensor.size()).enumerate().all(fits) {
        return Ok(());
    }
    let (found, most) = (index.size(), tensor.size());
    let why = match ignored_axis {
        _ if found.len() != most.len() => {
            format!("indices of size {found:?} do not have as many axes as the {what} of size {most:?}")
        }
        Some(axis) => {
            format!("indices of size {found:?} exceed the {what} of size {most:?}, ignoring axis {axis}")
        }
        None => format!("indices of size {found:?} exceed the {what} of size {most:?}"),
    };
    Err(Error::new(ErrorKind::SizeMismatch, format!("{op}: {why}")))
}

/// Returns the error for indices that were in range when they were checked, but no longer are.
fn changed_indices(op: &str) -> Error {
    let message =
        format!("{op}: the indices were changed while they were read; copy them first, with clone_data");
    Error::new(ErrorKind::OutOfRange, message)
}
