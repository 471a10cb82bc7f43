//! Views of tensors, with the names and arguments of PyTorch.

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PySlice, PyString, PyTuple, PyType};
use stridemap::{Axis, Index, Sections};

use crate::array::arrays;
use crate::error::Result;
use crate::source::dtype_of;
use crate::tensor::Tensor;

/// A dimension: its position, negative from the end, or its name.
#[derive(FromPyObject)]
enum Dim {
    Position(isize),
    Name(String),
}

impl<'a> From<&'a Dim> for Axis<'a> {
    fn from(dim: &'a Dim) -> Self {
        match dim {
            Dim::Position(position) => (*position).into(),
            Dim::Name(name) => name.into(),
        }
    }
}

/// One dimension, or several.
#[derive(FromPyObject)]
enum Dims {
    One(Dim),
    Several(Vec<Dim>),
}

impl Dims {
    fn each(&self) -> &[Dim] {
        match self {
            Dims::One(dim) => std::slice::from_ref(dim),
            Dims::Several(dims) => dims,
        }
    }
}

/// How to divide a dimension. For `split`: one size for every part, or the size of each. For `tensor_split`: the number
/// of parts, or the boundaries between them.
#[derive(FromPyObject)]
enum Parts {
    One(isize),
    Several(Vec<isize>),
}

impl From<&Parts> for Sections {
    fn from(parts: &Parts) -> Self {
        match parts {
            Parts::One(one) => (*one).into(),
            Parts::Several(several) => several.into(),
        }
    }
}

/// Returns arguments that may also be given as one sequence: `view(2, 3)` or `view((2, 3))`.
fn integers(arguments: &Bound<'_, PyTuple>) -> PyResult<Vec<isize>> {
    match arguments.len() {
        1 if arguments.get_item(0)?.extract::<isize>().is_err() => arguments.get_item(0)?.extract(),
        _ => arguments.extract(),
    }
}

/// Whether an argument is a dtype: a name, a type such as `np.int32`, or a dtype of NumPy or PyTorch.
fn is_dtype(argument: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_named = argument.is_instance_of::<PyString>() || argument.is_instance_of::<PyType>();
    Ok(is_named || (argument.hasattr("itemsize")? && !argument.hasattr("__array__")?))
}

impl Tensor {
    fn wrapped(&self, view: stridemap::Result<stridemap::Tensor>) -> Result<Tensor> {
        Ok(self.with_same_origin(view?))
    }

    /// Like `wrapped`, for an operation that may copy elements, and wait for the lock of a mutable tensor.
    fn or_copied(
        &self,
        py: Python<'_>,
        view: impl FnOnce() -> stridemap::Result<stridemap::Tensor> + Send,
    ) -> Result<Tensor> {
        Ok(self.with_same_origin(self.detach(py, view)?))
    }

    fn all_wrapped(&self, views: stridemap::Result<Vec<stridemap::Tensor>>) -> Result<Vec<Tensor>> {
        Ok(views?.into_iter().map(|view| self.with_same_origin(view)).collect())
    }
}

#[pymethods]
impl Tensor {
    /// Returns a view, or an array of NumPy with a copy of the elements that lists and masks select.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, subscript: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        let entries: Vec<Bound<'_, PyAny>> = match subscript.cast::<PyTuple>() {
            Ok(tuple) => tuple.iter().collect(),
            Err(_) => vec![subscript.clone()],
        };
        if entries.iter().any(selects_elements) {
            return Ok(arrays(slf.py())?.getattr("take")?.call1((slf, subscript))?);
        }
        let indices = entries.iter().map(index).collect::<PyResult<Vec<Index>>>()?;
        let view = slf.get().wrapped(slf.get().inner.index(indices))?;
        Ok(Bound::new(slf.py(), view)?.into_any())
    }

    /// The same elements with the dimensions in reverse order, as in NumPy.
    ///
    /// >>> x.T.tolist()
    /// [[0, 3], [1, 4], [2, 5]]
    #[getter(T)]
    fn reversed(&self) -> Result<Tensor> {
        self.wrapped(self.inner.permute((0..self.inner.ndim()).rev().collect::<Vec<_>>()))
    }

    /// The same elements with the last two dimensions exchanged.
    ///
    /// >>> x.unsqueeze(0).mT.shape
    /// (1, 3, 2)
    #[getter(mT)]
    fn mt(&self) -> Result<Tensor> {
        match self.inner.ndim() {
            0 => self.wrapped(Ok(self.inner.clone())),
            _ => self.wrapped(self.inner.transpose(-2, -1)),
        }
    }

    /// Names dimensions that have no name, as PyTorch did. A dimension that has one is listed under it, `None` is no name,
    /// and "..." stands for all dimensions that are not listed. A name is an identifier. A saved view keeps its names.
    ///
    /// >>> x.refine_names("row", "column").select("column", 0).tolist()
    /// [0, 3]
    #[pyo3(signature = (*names))]
    fn refine_names(&self, names: Vec<Option<String>>) -> Result<Tensor> {
        let names: Vec<Option<&str>> = names.iter().map(Option::as_deref).collect();
        self.wrapped(self.inner.refine_names(&names))
    }

    /// The real parts of complex numbers.
    ///
    /// >>> store["z"] = [1 + 2j, 3 - 4j]
    /// >>> store["z"].real.tolist()
    /// [1.0, 3.0]
    #[getter]
    fn real(&self) -> Result<Tensor> {
        match self.inner.dtype().is_complex() {
            true => self.wrapped(self.inner.view_as_real().and_then(|parts| parts.select(-1, 0))),
            false => self.wrapped(Ok(self.inner.clone())),
        }
    }

    /// The imaginary parts of complex numbers.
    ///
    /// >>> store["z"] = [1 + 2j, 3 - 4j]
    /// >>> store["z"].imag.tolist()
    /// [2.0, -4.0]
    #[getter]
    fn imag(&self) -> Result<Tensor> {
        self.wrapped(self.inner.view_as_real().and_then(|parts| parts.select(-1, 1)))
    }

    /// Returns the transpose of a tensor of at most two dimensions.
    ///
    /// >>> x.t().shape
    /// (3, 2)
    fn t(&self) -> Result<Tensor> {
        self.wrapped(self.inner.t())
    }

    /// Returns a view with two dimensions exchanged, or with all in the order of a list, as NumPy does.
    ///
    /// >>> x.transpose(0, 1).tolist()
    /// [[0, 3], [1, 4], [2, 5]]
    #[pyo3(signature = (dim0, dim1 = None))]
    fn transpose(&self, dim0: Dims, dim1: Option<Dim>) -> Result<Tensor> {
        match (&dim0, &dim1) {
            (Dims::One(dim0), Some(dim1)) => self.wrapped(self.inner.transpose(dim0, dim1)),
            (order, None) => self.wrapped(self.inner.permute(order.each())),
            (Dims::Several(_), Some(_)) => {
                let message = "transpose takes two dimensions, or the order of all in a list";
                Err(PyTypeError::new_err(message).into())
            }
        }
    }

    /// Returns a view with the dimensions in another order.
    ///
    /// >>> x.unsqueeze(2).permute(2, 0, 1).shape
    /// (1, 2, 3)
    #[pyo3(signature = (*dims))]
    fn permute(&self, dims: &Bound<'_, PyTuple>) -> Result<Tensor> {
        self.wrapped(self.inner.permute(integers(dims)?))
    }

    /// Returns a view with dimensions moved to other positions. The others keep their order.
    ///
    /// >>> x.unsqueeze(2).movedim(2, 0).shape
    /// (1, 2, 3)
    fn movedim(&self, source: Dims, destination: Dims) -> Result<Tensor> {
        self.wrapped(self.inner.movedim(source.each(), destination.each()))
    }

    /// Returns a view of one position of a dimension, without that dimension.
    ///
    /// >>> x.select(1, 2).tolist()
    /// [2, 5]
    fn select(&self, dim: Dim, index: isize) -> Result<Tensor> {
        self.wrapped(self.inner.select(&dim, index))
    }

    /// Returns a view of `length` positions of a dimension, from `start` on.
    ///
    /// >>> x.narrow(1, 1, 2).tolist()
    /// [[1, 2], [4, 5]]
    fn narrow(&self, dim: Dim, start: isize, length: isize) -> Result<Tensor> {
        self.wrapped(self.inner.narrow(&dim, start, length))
    }

    /// Returns a view of every `step`-th position of a dimension, from `start` up to `end`. The step may be negative.
    ///
    /// >>> x.slice(1, step=2).tolist()
    /// [[0, 2], [3, 5]]
    #[pyo3(signature = (dim, start=None, end=None, step=1))]
    fn slice(&self, dim: Dim, start: Option<isize>, end: Option<isize>, step: isize) -> Result<Tensor> {
        self.wrapped(self.inner.slice(&dim, start, end, step))
    }

    /// Returns a view with the order of the elements reversed along dimensions.
    ///
    /// >>> x.flip(1).tolist()
    /// [[2, 1, 0], [5, 4, 3]]
    #[pyo3(signature = (*dims))]
    fn flip(&self, dims: &Bound<'_, PyTuple>) -> Result<Tensor> {
        self.wrapped(self.inner.flip(integers(dims)?))
    }

    /// Returns a view of a diagonal of two dimensions. The diagonal is the last dimension of the view.
    ///
    /// >>> x.diagonal().tolist(), x.diagonal(offset=1).tolist()
    /// ([0, 4], [1, 5])
    #[pyo3(signature = (offset=0, dim1=Dim::Position(0), dim2=Dim::Position(1)))]
    fn diagonal(&self, offset: isize, dim1: Dim, dim2: Dim) -> Result<Tensor> {
        self.wrapped(self.inner.diagonal(offset, &dim1, &dim2))
    }

    /// Returns a view without the dimensions of size 1: all of them, or those that are given. NumPy calls `dim` `axis`.
    ///
    /// >>> x[:1].squeeze().shape, x[:1].squeeze(1).shape
    /// ((3,), (1, 3))
    #[pyo3(signature = (dim=None, *, axis=None))]
    fn squeeze(&self, dim: Option<Dims>, axis: Option<Dims>) -> Result<Tensor> {
        self.wrapped(match dim.as_ref().or(axis.as_ref()) {
            Some(dims) => self.inner.squeeze(dims.each()),
            None => self.inner.squeeze(0..self.inner.ndim()),
        })
    }

    /// Returns a view with a new dimension of size 1.
    ///
    /// >>> x.unsqueeze(0).shape, x.unsqueeze(-1).shape
    /// ((1, 2, 3), (2, 3, 1))
    fn unsqueeze(&self, dim: isize) -> Result<Tensor> {
        self.wrapped(self.inner.unsqueeze(dim))
    }

    /// Returns a view that repeats dimensions of size 1, and adds dimensions in front. The size -1 keeps that of the
    /// tensor.
    ///
    /// >>> x[0].expand(2, -1).tolist()
    /// [[0, 1, 2], [0, 1, 2]]
    #[pyo3(signature = (*size))]
    fn expand(&self, size: &Bound<'_, PyTuple>) -> Result<Tensor> {
        self.wrapped(self.inner.expand(integers(size)?))
    }

    /// Returns a view of another shape. If the strides do not allow one, this is an error, and `reshape` makes a copy. With
    /// a dtype instead of a shape, this is `view_dtype`.
    ///
    /// >>> x.view(3, -1).tolist(), x.view("int32").shape
    /// ([[0, 1], [2, 3], [4, 5]], (2, 6))
    #[pyo3(signature = (*shape))]
    fn view(&self, shape: &Bound<'_, PyTuple>) -> Result<Tensor> {
        if shape.len() == 1 && is_dtype(&shape.get_item(0)?)? {
            return self.view_dtype(&shape.get_item(0)?);
        }
        self.wrapped(self.inner.view(integers(shape)?))
    }

    /// Returns a view if the strides allow one, and otherwise a copy in memory.
    ///
    /// >>> x.T.reshape(6).tolist(), x.reshape(6).shares_storage(x)
    /// ([0, 3, 1, 4, 2, 5], True)
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python<'_>, shape: &Bound<'_, PyTuple>) -> Result<Tensor> {
        let shape = integers(shape)?;
        self.or_copied(py, || self.inner.reshape(shape))
    }

    /// Returns dimensions as one: a view if the strides allow one, and otherwise a copy in memory.
    ///
    /// >>> x.flatten().tolist()
    /// [0, 1, 2, 3, 4, 5]
    #[pyo3(signature = (start_dim=Dim::Position(0), end_dim=Dim::Position(-1)))]
    fn flatten(&self, py: Python<'_>, start_dim: Dim, end_dim: Dim) -> Result<Tensor> {
        self.or_copied(py, || self.inner.flatten(&start_dim, &end_dim))
    }

    /// Returns a view with one dimension as several. One of the sizes may be -1.
    ///
    /// >>> x.flatten().unflatten(0, [3, -1]).shape
    /// (3, 2)
    fn unflatten(&self, dim: Dim, sizes: Vec<isize>) -> Result<Tensor> {
        self.wrapped(self.inner.unflatten(&dim, sizes))
    }

    /// Returns the tensor itself if it is contiguous, and otherwise a copy in memory.
    ///
    /// >>> x.contiguous().shares_storage(x), x.T.contiguous().shares_storage(x)
    /// (True, False)
    fn contiguous(&self, py: Python<'_>) -> Result<Tensor> {
        self.or_copied(py, || self.inner.contiguous())
    }

    /// Returns a view of the windows along a dimension: `size` elements each, `step` apart, in a new last dimension.
    ///
    /// >>> x.unfold(1, 2, 1).tolist()
    /// [[[0, 1], [1, 2]], [[3, 4], [4, 5]]]
    fn unfold(&self, dimension: Dim, size: isize, step: isize) -> Result<Tensor> {
        self.wrapped(self.inner.unfold(&dimension, size, step))
    }

    /// Returns a view of all windows along axes, in new last dimensions, as NumPy's function does.
    ///
    /// >>> x.sliding_window_view([2], 1).shape
    /// (2, 2, 2)
    fn sliding_window_view(&self, window_shape: Vec<isize>, axis: Dims) -> Result<Tensor> {
        self.wrapped(self.inner.sliding_window_view(window_shape, axis.each()))
    }

    /// Returns a view of the storage with any size and strides, in elements. The offset of the tensor stays, unless one
    /// is given.
    ///
    /// >>> x.as_strided([2, 2], [1, 1]).tolist()
    /// [[0, 1], [1, 2]]
    #[pyo3(signature = (size, stride, storage_offset=None))]
    fn as_strided(
        &self,
        size: Vec<isize>,
        stride: Vec<isize>,
        storage_offset: Option<usize>,
    ) -> Result<Tensor> {
        self.wrapped(self.inner.as_strided(size, stride, storage_offset))
    }

    /// Returns the same bytes as elements of a different dtype.
    ///
    /// >>> x.view_dtype("uint8").shape
    /// (2, 24)
    fn view_dtype(&self, dtype: &Bound<'_, PyAny>) -> Result<Tensor> {
        self.wrapped(self.inner.view_dtype(dtype_of(dtype)?))
    }

    /// Returns complex numbers as pairs of real numbers, in a new last dimension.
    ///
    /// >>> store["z"] = [1 + 2j, 3 - 4j]
    /// >>> store["z"].view_as_real().tolist()
    /// [[1.0, 2.0], [3.0, -4.0]]
    fn view_as_real(&self) -> Result<Tensor> {
        self.wrapped(self.inner.view_as_real())
    }

    /// Returns pairs of real numbers, in the last dimension, as complex numbers.
    ///
    /// >>> store["z"] = [[1.0, 2.0], [3.0, -4.0]]
    /// >>> store["z"].view_as_complex().tolist()
    /// [(1+2j), (3-4j)]
    fn view_as_complex(&self) -> Result<Tensor> {
        self.wrapped(self.inner.view_as_complex())
    }

    /// Returns views of at most so many parts of a dimension, of equal size except for the last.
    ///
    /// >>> [part.tolist() for part in x.chunk(2, dim=1)]
    /// [[[0, 1], [3, 4]], [[2], [5]]]
    #[pyo3(signature = (chunks, dim=Dim::Position(0)))]
    fn chunk(&self, chunks: isize, dim: Dim) -> Result<Vec<Tensor>> {
        self.all_wrapped(self.inner.chunk(chunks, &dim))
    }

    /// Returns views of parts of a dimension: of one size, or of the size of each.
    ///
    /// >>> [part.shape for part in x.split([1, 2], dim=1)]
    /// [(2, 1), (2, 2)]
    #[pyo3(signature = (split_size, dim=Dim::Position(0)))]
    fn split(&self, split_size: Parts, dim: Dim) -> Result<Vec<Tensor>> {
        self.all_wrapped(self.inner.split(&split_size, &dim))
    }

    /// Returns views of so many parts of a dimension, or of the parts between positions.
    ///
    /// >>> [part.shape for part in x.tensor_split([1], dim=1)]
    /// [(2, 1), (2, 2)]
    #[pyo3(signature = (indices_or_sections, dim=Dim::Position(0)))]
    fn tensor_split(&self, indices_or_sections: Parts, dim: Dim) -> Result<Vec<Tensor>> {
        self.all_wrapped(self.inner.tensor_split(&indices_or_sections, &dim))
    }

    /// Returns a view of each position of a dimension, without that dimension.
    ///
    /// >>> [part.tolist() for part in x.unbind()]
    /// [[0, 1, 2], [3, 4, 5]]
    #[pyo3(signature = (dim=Dim::Position(0)))]
    fn unbind(&self, dim: Dim) -> Result<Vec<Tensor>> {
        self.all_wrapped(self.inner.unbind(&dim))
    }
}

/// Whether an entry of a subscript is a list or an array of positions or of bools.
fn selects_elements(entry: &Bound<'_, PyAny>) -> bool {
    if entry.is_instance_of::<PyInt>() || entry.is_instance_of::<PySlice>() || entry.is_none() {
        return false;
    }
    let has_dimensions =
        || entry.getattr("ndim").and_then(|ndim| ndim.extract::<usize>()).is_ok_and(|ndim| ndim > 0);
    entry.is_instance_of::<PyList>() || has_dimensions()
}

/// Converts one entry of a subscript: an integer, a slice, `...` or `None`.
fn index(entry: &Bound<'_, PyAny>) -> PyResult<Index> {
    if entry.is_none() {
        return Ok(Index::NewAxis);
    }
    if entry.is_instance_of::<PyEllipsis>() {
        return Ok(Index::Ellipsis);
    }
    if let Ok(slice) = entry.cast::<PySlice>() {
        let bound = |name: &str| clamped(&slice.getattr(name)?);
        let step = bound("step")?.unwrap_or(1);
        return Ok(Index::Slice { start: bound("start")?, end: bound("stop")?, step });
    }
    if !entry.is_instance_of::<PyBool>() {
        match entry.extract() {
            Ok(position) => return Ok(Index::At(position)),
            Err(e) if e.is_instance_of::<PyOverflowError>(entry.py()) => {
                return Err(PyIndexError::new_err(format!("index {entry} is out of range")));
            }
            Err(_) => {}
        }
    }
    Err({
        let kind = entry.get_type();
        PyTypeError::new_err(format!(
            "a subscript takes integers, slices, an ellipsis (...), None, and lists or arrays of integers or bools, not {kind}"
        ))
    })
}

/// Returns a bound of a slice. A bound that does not fit in an `isize` is clamped, which selects the same elements.
fn clamped(bound: &Bound<'_, PyAny>) -> PyResult<Option<isize>> {
    match bound.extract::<Option<isize>>() {
        Err(e) if e.is_instance_of::<PyOverflowError>(bound.py()) => {
            Ok(Some(if bound.lt(0)? { -isize::MAX } else { isize::MAX }))
        }
        bound => bound,
    }
}
