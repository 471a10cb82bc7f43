use std::fmt;
use std::fmt::Arguments;

use stridemap_format::limits::MAX_RANK;
use stridemap_format::{DType, Extent, check_numel};

use super::names::DimName;
use crate::error::{Error, ErrorKind, Result};

/// Sizes, strides and storage offset of a view, all in elements, and the names of its dimensions.
///
/// As many strides as sizes, at most 64, and a number of elements that fits in an `i64`. Whether the elements lie inside a
/// storage is checked where the two meet: by [`Tensor::from_file`](crate::Tensor::from_file) and
/// [`Transaction::save_header`](crate::Transaction::save_header).
///
/// ```
/// use stridemap::Layout;
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
    /// One for each dimension, or none at all: most tensors have no names.
    names: Vec<Option<DimName>>,
}

/// One dimension of a layout. Operations move dimensions about whole, so that a name stays with its size.
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
    /// Any layout, without names.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`].
    pub fn new(size: Vec<usize>, stride: Vec<isize>, offset: usize) -> Result<Self> {
        if size.len() > MAX_RANK || size.len() != stride.len() {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "{} sizes and {} strides, where at most {MAX_RANK} of each can be",
                    size.len(),
                    stride.len()
                ),
            ));
        }
        check_numel(size.iter().map(|&n| n as u64))
            .map_err(|e| Error::refused(format_args!("size {size:?}"), e))?;
        Ok(Layout { size, stride, offset, names: Vec::new() })
    }

    /// The layout of an array of another library, which keeps what [`new`](Self::new) checks: as many strides as sizes, at
    /// most 64, and a number of elements that fits.
    #[cfg(feature = "ndarray")]
    pub(crate) fn of_array(size: &[usize], stride: &[isize], offset: usize) -> Self {
        debug_assert!(Layout::new(size.to_vec(), stride.to_vec(), offset).is_ok(), "{size:?}, {stride:?}");
        Layout { size: size.to_vec(), stride: stride.to_vec(), offset, names: Vec::new() }
    }

    pub(super) fn of_dims(dims: Vec<Dim>, offset: usize) -> Result<Self> {
        let (size, stride) = dims.iter().map(|dim| (dim.size, dim.stride)).unzip();
        Ok(Layout::new(size, stride, offset)?.named(dims.into_iter().map(|dim| dim.name)))
    }

    /// The same dimensions under other names: as many as there are dimensions.
    pub(crate) fn named(mut self, names: impl Iterator<Item = Option<DimName>>) -> Self {
        self.names = names.collect();
        if self.names.iter().all(Option::is_none) {
            self.names.clear();
        }
        self
    }

    /// The layout of a fresh tensor: row-major, from offset 0, without names.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`].
    pub fn contiguous(size: &[usize]) -> Result<Self> {
        Layout::new(size.to_vec(), contiguous_strides(size)?, 0)
    }

    /// The layout of a fresh row-major copy.
    pub(crate) fn compacted(&self) -> Result<Self> {
        Ok(Layout::contiguous(&self.size)?.named(self.names().cloned()))
    }

    /// The size of each dimension, in elements.
    #[must_use]
    pub fn size(&self) -> &[usize] {
        &self.size
    }

    /// The stride of each dimension, in elements.
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        &self.stride
    }

    /// The strides for other libraries, which multiply and negate them. Where no step is ever taken, a store may hold any
    /// stride; there it is 1, as in what PyTorch lends.
    #[cfg(any(feature = "ndarray", feature = "dlpack"))]
    pub(crate) fn lent_strides(&self) -> Vec<isize> {
        let is_empty = self.numel() == 0;
        self.dims().map(|(n, stride)| if n < 2 || is_empty { 1 } else { stride }).collect()
    }

    /// Where in the storage the element of index 0, 0, ... is, in elements.
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

    /// The name of each dimension, if it has one.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Option<DimName>> + Clone {
        self.names.iter().chain(std::iter::repeat(&None)).take(self.rank())
    }

    /// Pairs of size and stride, outermost first.
    pub(crate) fn dims(
        &self,
    ) -> impl DoubleEndedIterator<Item = (usize, isize)> + ExactSizeIterator + Clone + '_ {
        self.size.iter().copied().zip(self.stride.iter().copied())
    }

    pub(super) fn to_dims(&self) -> Vec<Dim> {
        let dims = self.dims().zip(self.names());
        dims.map(|((size, stride), name)| Dim { size, stride, name: name.clone() }).collect()
    }

    /// The number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        if self.size.contains(&0) { 0 } else { self.size.iter().fold(1, |numel, &n| numel.saturating_mul(n)) }
    }

    /// PyTorch's rule: zero elements are contiguous, and strides of dimensions of size 1 do not matter.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.numel() == 0 || is_packed(self.dims().rev())
    }

    /// Whether the dimensions, of which the second is the channel, stand in memory with the channel innermost: what
    /// PyTorch calls `channels_last` for rank 4 and `channels_last_3d` for rank 5.
    pub(crate) fn is_channels_last(&self) -> bool {
        let mut inner_first: Vec<_> = self.dims().rev().collect();
        if inner_first.len() < 2 {
            return false;
        }
        let channel = inner_first.remove(inner_first.len().saturating_sub(2));
        inner_first.insert(0, channel);
        is_packed(inner_first.into_iter())
    }

    /// The bytes of a storage of `length_bytes` that the layout reaches.
    pub(crate) fn extent(&self, dtype: DType, length_bytes: u64) -> stridemap_format::Result<Extent> {
        let dims = self.dims().map(|(size, stride)| (size as i128, stride as i128));
        Extent::of(dims, self.offset as i128, dtype, length_bytes)
    }

    /// The same storage under other dimensions, moved by `shift` elements.
    ///
    /// A view without elements does not move: its offset is read by nobody, and so stays inside the storage.
    pub(super) fn moved(&self, op: Arguments<'_>, dims: Vec<Dim>, shift: i128) -> Result<Layout> {
        let offset = if dims.iter().any(|dim| dim.size == 0) {
            self.offset
        } else {
            let moved =
                shift.checked_add(self.offset as i128).and_then(|offset| usize::try_from(offset).ok());
            moved.ok_or_else(|| overflow(op))?
        };
        Layout::of_dims(dims, offset).map_err(|e| e.context(op))
    }
}

/// As it stands in errors.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size {:?} with stride {:?}", self.size, self.stride)
    }
}

/// Whether dimensions, innermost first, stand one in the other without a gap.
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

/// How far a number of steps goes. Cannot overflow: both factors fit in 64 bits.
pub(super) fn distance(steps: usize, stride: isize) -> i128 {
    (steps as i128).saturating_mul(stride as i128)
}
