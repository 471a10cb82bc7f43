use stridemap_format::DType;

use super::element::sealed::Sealed as _;
use super::inplace::load_into;
use super::stream::for_each_piece;
use super::{ExclusiveGuard, Operand, Tensor, copy};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Axis, Layout};

/// Elements that are looked up at a time: their places take some MiB.
const PIECE_ELEMS: usize = 256 << 10;

/// Rows from this size on are copied whole, shorter ones element by element.
const WHOLE_ROW_BYTES: usize = 256;

/// Elements by a tensor of indices: an `int64` one, whose indices count from 0. Unlike in a view, none counts from the end.
///
/// Errors of all of them, by kind: [`ErrorKind::OutOfRange`] for an index that the axis does not have, which says where it
/// stands; [`ErrorKind::DTypeMismatch`] for indices of another dtype; [`ErrorKind::SizeMismatch`];
/// [`ErrorKind::LimitExceeded`] when there is not so much memory; [`ErrorKind::Io`].
impl Tensor {
    /// The positions along an axis that a vector of indices names, in its order, on the heap. The indices may be `int32`
    /// too.
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
    /// Those above; [`ErrorKind::SizeMismatch`] unless `index` is a vector or a single element, and a single element for
    /// a tensor without dimensions.
    pub fn index_select<'a>(&self, axis: impl Into<Axis<'a>>, index: &Tensor) -> Result<Tensor> {
        let by = Indices::along(self, "index_select", axis.into(), index, &[DType::I32, DType::I64])?;
        let mut size = by.tensor.size().to_vec();
        size.splice(by.axis..=by.axis, [by.index.numel()]);
        let picked = match by.rows()? {
            Some(rows) => Tensor::filled(self.dtype(), by.kept(&size)?, |out| {
                let rows_out = out.chunks_exact_mut(row_bytes(&by.tensor));
                rows.iter()
                    .zip(rows_out)
                    .try_for_each(|(&row, out)| copy::gather(&by.tensor.select(0, row)?, out))
            })?,
            None => by.spread(&size)?.look_up()?,
        };
        if self.ndim() == 0 { picked.view(()) } else { Ok(picked) }
    }

    /// For every index of `index`, the element where the position along `axis` is replaced by what stands in `index`
    /// there, on the heap: `out[i][j] = x[index[i][j]][j]` for axis 0 of two.
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
    /// Those above; [`ErrorKind::SizeMismatch`] unless `index` has as many axes, and along each other axis no more
    /// elements.
    pub fn gather<'a>(&self, axis: impl Into<Axis<'a>>, index: &Tensor) -> Result<Tensor> {
        let by = Indices::each(self, "gather", axis.into(), index)?;
        let found = by.look_up()?;
        if index.ndim() == 0 { found.view(()) } else { Ok(found) }
    }
}

/// Changes in place, of the elements that a tensor of `int64` indices names.
///
/// Errors of all of them: those of [`Tensor::index_select`], with nothing changed; [`ErrorKind::DTypeMismatch`] unless the
/// source has the dtype of the tensor; [`ErrorKind::Overlapping`] when several indices of the tensor are one element.
/// Where an element is named twice, the later one stays.
impl ExclusiveGuard<'_> {
    /// Makes the positions along an axis that a vector of indices names those of `source`, in its order.
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
    /// Those above; [`ErrorKind::SizeMismatch`] unless `source` has the size of the tensor, with as many positions along
    /// the axis as there are indices.
    pub fn index_copy_<'a>(
        &mut self,
        axis: impl Into<Axis<'a>>,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<&mut Self> {
        let op = "index_copy_";
        self.check_writable(op)?;
        check_source_dtype(op, self, source)?;
        let by = Indices::along(self, op, axis.into(), &self.apart(index)?, &[DType::I64])?;
        let source = at_least_a_vector(&self.apart(source)?)?;
        let mut size = by.tensor.size().to_vec();
        size.splice(by.axis..=by.axis, [by.index.numel()]);
        if source.size() != size {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!("{op}: the source has size {:?}, where {size:?} fits", source.size()),
            ));
        }
        match by.rows()? {
            Some(rows) => {
                for (row, i) in rows.into_iter().zip(0..) {
                    self.at(&by.tensor.select(0, row)?)?.copy_(&source.select(0, i)?)?;
                }
            }
            None => by.spread(&size)?.put(self, Some(&source), &[])?,
        }
        Ok(self)
    }

    /// For every index of `index`, makes the element where the position along `axis` is replaced by what stands in `index`
    /// there the one of `source`, or a number: `x[index[i][j]][j] = source[i][j]` for axis 0 of two.
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
    /// Those above; [`ErrorKind::SizeMismatch`] unless `index` has as many axes as the tensor and the source, along each
    /// other axis no more elements than the tensor, and along none more than the source; [`ErrorKind::OutOfRange`] for a
    /// number that the dtype cannot hold.
    pub fn scatter_<'a, 'o>(
        &mut self,
        axis: impl Into<Axis<'a>>,
        index: &Tensor,
        source: impl Into<Operand<'o>>,
    ) -> Result<&mut Self> {
        let op = "scatter_";
        self.check_writable(op)?;
        let by = Indices::each(self, op, axis.into(), &self.apart(index)?)?;
        match source.into() {
            Operand::Number(number) => {
                let element = number.encode(self.dtype()).map_err(|e| e.context(op))?;
                by.put(self, None, element.split_at(self.dtype().itemsize()).0)?;
            }
            Operand::Tensor(source) => {
                check_source_dtype(op, self, source)?;
                let source = at_least_a_vector(&self.apart(source)?)?;
                if by.index.numel() > 0 {
                    check_index_size(op, &by.index, "source", &source, None)?;
                    // Of a source with more elements the first ones count.
                    let layout = Layout::new(
                        by.index.size().to_vec(),
                        source.stride().to_vec(),
                        source.storage_offset(),
                    )?;
                    by.put(self, Some(&source.with_layout(source.dtype(), layout)), &[])?;
                }
            }
        }
        Ok(self)
    }
}

/// Indices that were checked, of positions along an axis of a tensor.
struct Indices {
    op: &'static str,
    tensor: Tensor,
    axis: usize,
    index: Tensor,
}

impl Indices {
    /// One index for each of some positions, whatever the other axes.
    fn along(
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
                    "{op}: indices of size {:?} for size {:?}; give a vector of them",
                    index.size(),
                    tensor.size()
                ),
            ));
        }
        Indices { op, tensor: at_least_a_vector(tensor)?, axis, index: at_least_a_vector(index)? }.checked()
    }

    /// One index for each element of the result.
    fn each(tensor: &Tensor, op: &'static str, axis: Axis<'_>, index: &Tensor) -> Result<Self> {
        let axis = tensor.layout().axis(format_args!("{op}"), axis)?;
        check_index_dtype(op, index, &[DType::I64])?;
        let (tensor, index) = (at_least_a_vector(tensor)?, at_least_a_vector(index)?);
        if index.numel() > 0 {
            check_index_size(op, &index, "tensor", &tensor, Some(axis))?;
        }
        Indices { op, tensor, axis, index }.checked()
    }

    /// All of them, before anything is changed.
    fn checked(self) -> Result<Self> {
        let mut position = 0usize;
        for_each_piece(std::slice::from_ref(&self.index), PIECE_ELEMS, &mut |pieces| {
            for index in pieces.iter().map(read_indices).collect::<Result<Vec<_>>>()?.concat() {
                self.position_of(index).ok_or_else(|| {
                    Error::new(
                        ErrorKind::OutOfRange,
                        format!(
                            "{}: index {index} at position {position} is out of range for axis {} with size {}; \
                             indices count from 0",
                            self.op,
                            self.axis,
                            self.count()
                        ),
                    )
                })?;
                position += 1;
            }
            Ok(())
        })?;
        Ok(self)
    }

    fn count(&self) -> usize {
        self.tensor.size().get(self.axis).copied().unwrap_or(0)
    }

    fn position_of(&self, index: i64) -> Option<usize> {
        usize::try_from(index).ok().filter(|&position| position < self.count())
    }

    /// The positions, where they are those of rows that are worth being copied one by one.
    fn rows(&self) -> Result<Option<Vec<usize>>> {
        if self.axis > 0 || row_bytes(&self.tensor) < WHOLE_ROW_BYTES {
            return Ok(None);
        }
        let rows = read_indices(&self.index)?.into_iter().map(|index| self.position_of(index));
        rows.collect::<Option<Vec<_>>>().map(Some).ok_or_else(|| changed(self.op))
    }

    /// From one index a position to one an element: the same for all elements of a position.
    fn spread(self, size: &[usize]) -> Result<Self> {
        let mut stride = vec![0; size.len()];
        stride.splice(self.axis..=self.axis, self.index.stride().iter().copied());
        let layout = Layout::new(size.to_vec(), stride, self.index.storage_offset())?;
        Ok(Indices { index: self.index.with_layout(self.index.dtype(), layout), ..self })
    }

    /// Calls `body` with where in the storage the elements stand that are named, piece by piece, and with the pieces of
    /// `beside` that belong to them.
    fn for_each_piece(
        &self,
        beside: Option<&Tensor>,
        mut body: impl FnMut(&[usize], Option<&Tensor>) -> Result<()>,
    ) -> Result<()> {
        if self.index.numel() == 0 {
            return Ok(());
        }
        // The first position along the axis, again and again: from there an index leads to its element.
        let layout = self.tensor.layout();
        let mut stride = layout.stride().to_vec();
        let step = stride.splice(self.axis..=self.axis, [0]).sum::<isize>();
        let first = Layout::new(self.index.size().to_vec(), stride, layout.offset())?;
        let mut views = vec![self.index.clone(), self.tensor.with_layout(self.tensor.dtype(), first)];
        views.extend(beside.cloned());
        for_each_piece(&views, PIECE_ELEMS, &mut |pieces| {
            let [index, first, beside @ ..] = pieces else { return Ok(()) };
            let places =
                offsets(first.layout()).into_iter().zip(read_indices(index)?).map(|(start, index)| {
                    Some(start.wrapping_add_signed(self.position_of(index)? as isize * step))
                });
            let places: Vec<usize> = places.collect::<Option<_>>().ok_or_else(|| changed(self.op))?;
            body(&places, beside.first())
        })
    }

    /// A fresh layout for what is read: its dimensions have the names of the tensor's.
    fn kept(&self, size: &[usize]) -> Result<Layout> {
        Ok(Layout::contiguous(size)?.named(self.tensor.layout().names().cloned()))
    }

    /// The elements that are named, on the heap.
    fn look_up(&self) -> Result<Tensor> {
        let itemsize = self.tensor.dtype().itemsize();
        Tensor::filled(self.tensor.dtype(), self.kept(self.index.size())?, |mut rest| {
            self.for_each_piece(None, |places, _| {
                let (out, after) = std::mem::take(&mut rest).split_at_mut(places.len() * itemsize);
                rest = after;
                copy::gather_places(&self.tensor, places, out)
            })
        })
    }

    /// Makes the elements that are named those of `source`, or without one all of them `element`.
    fn put(&self, guard: &mut ExclusiveGuard<'_>, source: Option<&Tensor>, element: &[u8]) -> Result<()> {
        let (_, storage) = guard.parts();
        let mut bytes = Vec::new();
        self.for_each_piece(source, |places, source| {
            match source {
                Some(source) => {
                    bytes.resize(source.nbytes(), 0);
                    copy::gather(source, &mut bytes)?;
                }
                None => bytes = element.repeat(places.len()),
            }
            copy::scatter_places(&bytes, self.tensor.dtype().itemsize(), places, storage)
        })
    }
}

/// Where each element stands in the storage, in row-major order.
fn offsets(layout: &Layout) -> Vec<usize> {
    layout.dims().fold(vec![layout.offset()], |starts, (n, step)| {
        let along = |start: usize| (0..n as isize).map(move |i| start.wrapping_add_signed(i * step));
        starts.into_iter().flat_map(along).collect()
    })
}

fn read_indices(index: &Tensor) -> Result<Vec<i64>> {
    let mut indices = i64::zeros(index.numel())?;
    load_into(index, DType::I64, &mut Vec::new(), bytemuck::cast_slice_mut(&mut indices))?;
    Ok(indices)
}

/// PyTorch's indexing takes a tensor without dimensions for a vector of one element.
fn at_least_a_vector(tensor: &Tensor) -> Result<Tensor> {
    if tensor.ndim() == 0 { tensor.view([1]) } else { Ok(tensor.clone()) }
}

/// The bytes of the elements at one position of the first axis.
fn row_bytes(tensor: &Tensor) -> usize {
    let count = tensor.size().first().copied().unwrap_or(1);
    tensor.nbytes().checked_div(count).unwrap_or(0)
}

fn check_index_dtype(op: &str, index: &Tensor, dtypes: &[DType]) -> Result<()> {
    if dtypes.contains(&index.dtype()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::DTypeMismatch,
        format!("{op}: the indices are {}; indices are int64, as to_dtype makes them", index.dtype()),
    ))
}

fn check_source_dtype(op: &str, tensor: &Tensor, source: &Tensor) -> Result<()> {
    if source.dtype() == tensor.dtype() {
        return Ok(());
    }
    let (own, theirs) = (tensor.dtype(), source.dtype());
    Err(Error::new(
        ErrorKind::DTypeMismatch,
        format!("{op}: the source is {theirs} and the tensor {own}; convert it with to_dtype"),
    ))
}

/// Whether indices stay within a tensor along every axis, `but` aside.
fn check_index_size(op: &str, index: &Tensor, what: &str, tensor: &Tensor, but: Option<usize>) -> Result<()> {
    let fits = |(axis, (n, most)): (usize, (&usize, &usize))| Some(axis) == but || n <= most;
    if index.ndim() == tensor.ndim() && index.size().iter().zip(tensor.size()).enumerate().all(fits) {
        return Ok(());
    }
    let but = but.map(|axis| format!(", axis {axis} aside")).unwrap_or_default();
    Err(Error::new(
        ErrorKind::SizeMismatch,
        format!(
            "{op}: indices of size {:?} do not lie within the {what} of size {:?}{but}",
            index.size(),
            tensor.size()
        ),
    ))
}

/// The indices were in range when they were checked.
fn changed(op: &str) -> Error {
    let message =
        format!("{op}: the indices were changed while they were read; hold a shared guard of their tensor");
    Error::new(ErrorKind::OutOfRange, message)
}
