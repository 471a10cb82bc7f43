//! The layout of a tensor: sizes, strides, storage offset and dimension names.

use std::fmt;
use std::fmt::Arguments;
use std::ops::Range;

use stridemap_format::limits::MAX_RANK;
use stridemap_format::{DType, Extent, TensorParts, TensorRecord, check_numel};

use super::names::DimName;
use crate::error::{Context, Error, ErrorKind, FormatContext, Result};

/// The sizes, strides and storage offset of a view, in elements, and the names of its dimensions.
///
/// A layout has one stride per size, at most 64 dimensions, and a number of elements that fits in an `i64`. It does
/// not know its storage: [`Tensor::from_file`](crate::Tensor::from_file) and
/// [`Transaction::save_header`](crate::Transaction::save_header) check that the elements are inside it.
///
/// ```
/// use stridemap::import::Layout;
///
/// let columns = Layout::new(vec![3, 2], vec![1, 3], 6)?; // column-major, from the 7th element on
/// assert_eq!((columns.size(), columns.stride(), columns.offset()), (&[3, 2][..], &[1, 3][..], 6));
/// assert_eq!(columns.numel(), 6);
/// assert_eq!(Layout::contiguous(&[3, 2])?.stride(), [2, 1]);
/// # Ok::<(), stridemap::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    size: Vec<usize>,
    stride: Vec<isize>,
    offset: usize,
    /// One per dimension, or empty if no dimension has a name, which is most common.
    names: Vec<Option<DimName>>,
}

/// One dimension of a layout. Operations move whole dimensions, so a name stays with its size.
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

impl Layout {
    /// Creates a layout without names.
    ///
    /// ```
    /// # use stridemap::import::Layout;
    /// let backwards = Layout::new(vec![4], vec![-1], 3)?; // begins at the last of 4 elements
    /// assert_eq!(backwards.numel(), 4);
    /// assert!(Layout::new(vec![2, 2], vec![1], 0).is_err());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] unless there are as many strides as sizes, at most 64 dimensions, and a number of
    /// elements that fits in an `i64`.
    pub fn new(size: Vec<usize>, stride: Vec<isize>, offset: usize) -> Result<Self> {
        if size.len() > MAX_RANK || size.len() != stride.len() {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "{} sizes and {} strides; both numbers must be equal and at most {MAX_RANK}",
                    size.len(),
                    stride.len()
                ),
            ));
        }
        check_numel(size.iter().map(|&n| n as u64)).refused_to(format_args!("size {size:?}"))?;
        Ok(Layout { size, stride, offset, names: Vec::new() })
    }

    /// Creates the layout of a tensor. Its record has passed the checks of [`new`](Self::new), and a `usize` has 64
    /// bits, so every number fits.
    pub(crate) fn of_record(record: &TensorRecord) -> Self {
        let layout = Layout {
            size: record.size.iter().map(|&n| n as usize).collect(),
            stride: record.stride.iter().map(|&n| n as isize).collect(),
            offset: record.offset_elems as usize,
            names: Vec::new(),
        };
        match &record.dim_names {
            Some(names) => layout.named(names.iter().map(|name| name.as_deref().map(Into::into))),
            None => layout,
        }
    }

    pub(super) fn of_dims(dims: Vec<Dim>, offset: usize) -> Result<Self> {
        let (size, stride) = dims.iter().map(|dim| (dim.size, dim.stride)).unzip();
        Ok(Layout::new(size, stride, offset)?.named(dims.into_iter().map(|dim| dim.name)))
    }

    /// Replaces the names. There must be one per dimension.
    pub(crate) fn named(mut self, names: impl Iterator<Item = Option<DimName>>) -> Self {
        self.names = names.collect();
        if self.names.iter().all(Option::is_none) {
            self.names.clear();
        }
        self
    }

    /// Creates the layout of a new tensor: row-major, with offset 0 and without names.
    ///
    /// ```
    /// # use stridemap::import::Layout;
    /// assert_eq!(Layout::contiguous(&[2, 3, 4])?.stride(), [12, 4, 1]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for more than 64 dimensions, or too many elements.
    pub fn contiguous(size: &[usize]) -> Result<Self> {
        Layout::new(size.to_vec(), contiguous_strides(size)?, 0)
    }

    /// Returns the layout of a row-major copy.
    pub(crate) fn to_contiguous(&self) -> Result<Self> {
        Ok(Layout::contiguous(&self.size)?.named(self.names().cloned()))
    }

    /// Returns the size of each dimension, in elements.
    #[must_use]
    pub fn size(&self) -> &[usize] {
        &self.size
    }

    /// Returns the stride of each dimension, in elements.
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        &self.stride
    }

    /// Returns the strides to lend to other libraries, which multiply and negate them. A stride that no element uses
    /// can have any value in a store. It becomes 1, as in tensors that PyTorch lends.
    #[cfg(any(feature = "ndarray", feature = "dlpack"))]
    pub(crate) fn strides_with_unused_as_one(&self) -> Vec<isize> {
        let is_empty = self.numel() == 0;
        self.dims().map(|(n, stride)| if n < 2 || is_empty { 1 } else { stride }).collect()
    }

    /// Returns the position in the storage of the element at index 0, 0, ..., in elements.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn rank(&self) -> usize {
        self.size.len()
    }

    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Returns the name of each dimension, if it has one.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Option<DimName>> + Clone {
        self.names.iter().chain(std::iter::repeat(&None)).take(self.rank())
    }

    /// Returns pairs of size and stride, outermost first.
    pub(crate) fn dims(
        &self,
    ) -> impl DoubleEndedIterator<Item = (usize, isize)> + ExactSizeIterator + Clone + '_ {
        self.size.iter().copied().zip(self.stride.iter().copied())
    }

    pub(super) fn to_dims(&self) -> Vec<Dim> {
        let dims = self.dims().zip(self.names());
        dims.map(|((size, stride), name)| Dim { size, stride, name: name.clone() }).collect()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        if self.size.contains(&0) { 0 } else { self.size.iter().fold(1, |numel, &n| numel.saturating_mul(n)) }
    }

    /// Returns whether the elements are adjacent in row-major order. As in PyTorch, an empty tensor is contiguous,
    /// and strides of dimensions of size 1 are ignored.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.numel() == 0 || is_packed(self.dims().rev())
    }

    /// Returns the parts of the record of a tensor with this layout.
    pub(crate) fn tensor_parts(&self, dtype: DType, storage_id: u64) -> TensorParts {
        TensorParts {
            dtype,
            size: self.size.iter().map(|&n| n as u64).collect(),
            stride: self.stride.iter().map(|&n| n as i64).collect(),
            offset_elems: self.offset as u64,
            storage_id,
            dim_names: self
                .has_names()
                .then(|| self.names().map(|name| name.as_deref().map(str::to_owned)).collect()),
        }
    }

    /// Returns the bytes that the layout reaches in a storage of `length_bytes`.
    pub(crate) fn extent(&self, dtype: DType, length_bytes: u64) -> stridemap_format::Result<Extent> {
        let dims = self.dims().map(|(size, stride)| (size as i128, stride as i128));
        Extent::of(dims, self.offset as i128, dtype, length_bytes)
    }

    /// Returns the smallest range of a storage that contains all elements, or `None` without elements.
    pub(crate) fn byte_range(&self, dtype: DType) -> Option<Range<u64>> {
        let extent = self.extent(dtype, i64::MAX as u64).ok().filter(|extent| extent.span_bytes() > 0)?;
        Some(extent.start_bytes()..extent.start_bytes().saturating_add(extent.span_bytes()))
    }

    /// Returns this layout with other dimensions, and with an offset that is `shift` elements larger.
    ///
    /// An empty view keeps its offset: no element uses it, and a moved offset could be outside the storage.
    pub(super) fn with_dims(&self, op: Arguments<'_>, dims: Vec<Dim>, shift: i128) -> Result<Layout> {
        let offset = if dims.iter().any(|dim| dim.size == 0) {
            self.offset
        } else {
            let moved =
                shift.checked_add(self.offset as i128).and_then(|offset| usize::try_from(offset).ok());
            moved.ok_or_else(|| overflow(op))?
        };
        Layout::of_dims(dims, offset).context(op)
    }
}

/// The form shown in errors.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size {:?} with stride {:?}", self.size, self.stride)
    }
}

/// Returns whether dimensions, innermost first, are nested without gaps.
fn is_packed(inner_first: impl Iterator<Item = (usize, isize)>) -> bool {
    let mut expected = 1usize;
    inner_first.filter(|&(size, _)| size != 1).all(|(size, stride)| {
        let fits = usize::try_from(stride) == Ok(expected);
        expected = expected.saturating_mul(size);
        fits
    })
}

pub(crate) fn contiguous_strides(size: &[usize]) -> Result<Vec<isize>> {
    let mut step = 1isize;
    let mut strides = Vec::with_capacity(size.len());
    for (axis, &n) in size.iter().enumerate().rev() {
        strides.push(step);
        if axis > 0 {
            let next = isize::try_from(n.max(1)).ok().and_then(|n| step.checked_mul(n));
            step = next.ok_or_else(|| overflow(format_args!("size {size:?}")))?;
        }
    }
    strides.reverse();
    Ok(strides)
}

pub(super) fn overflow(op: Arguments<'_>) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("{op}: a stride or an offset does not fit in 64 bits"))
}

/// Returns the distance that a number of steps covers, in elements. It cannot overflow: both factors fit in 64 bits.
pub(super) fn distance(steps: usize, stride: isize) -> i128 {
    (steps as i128).saturating_mul(stride as i128)
}
