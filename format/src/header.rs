//! The header of a tensor: dtype, size, stride, storage offset and the names of dimensions.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::limits::{MAX_DIM_NAME_BYTES, MAX_RANK};
use crate::{DType, Dims, Error, Extent, Result, Rule, check_numel};

/// The header of a tensor: how to find its elements in a storage. All numbers but bytes are in elements.
///
/// A header has one stride per size, at most 64 dimensions, a number of elements that fits in an `i64`, and names of
/// dimensions that are identifiers and differ. It does not know its storage: [`extent`](Self::extent) checks that the
/// elements are inside one.
///
/// Its errors name a [`Rule`]. Where errors of `stridemap` are expected, as in a closure of `Store::write`,
/// `stridemap::Error::refused` converts them: `Header::new(..).map_err(|e| Error::refused("save x", e))?`.
///
/// ```
/// use stridemap_format::{DType, Header};
///
/// let columns = Header::new(DType::F32, [3, 2], [1, 3], 6)?; // column-major, from the 7th element on
/// assert_eq!((columns.size(), columns.stride(), columns.storage_offset()), (&[3, 2][..], &[1, 3][..], 6));
/// assert_eq!((columns.numel(), columns.nbytes(), columns.byte_range()), (6, 24, Some(24..48)));
/// assert_eq!(Header::contiguous(DType::F32, &[3, 2])?.stride(), [2, 1]);
/// # Ok::<(), stridemap_format::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    dtype: DType,
    size: Dims<usize>,
    stride: Dims<isize>,
    storage_offset: usize,
    /// One per dimension, or empty if no dimension has a name, which is most common.
    dim_names: Vec<Option<Arc<str>>>,
}

impl Header {
    /// Creates a header without names. A negative stride runs backwards; a stride of zero repeats an element.
    ///
    /// ```
    /// # use stridemap_format::{DType, Header};
    /// let backwards = Header::new(DType::U8, [4], [-1], 3)?; // begins at the last of 4 elements
    /// assert_eq!(backwards.numel(), 4);
    /// assert!(Header::new(DType::U8, [2, 2], [1], 0).is_err());
    /// # Ok::<(), stridemap_format::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Rule::Rank`] unless there are as many strides as sizes, and at most 64; [`Rule::Numel`] for a number of
    /// elements that does not fit in an `i64`.
    #[inline] // the decoder of records is 5 % slower if the sizes and strides are moved once more
    pub fn new(
        dtype: DType,
        size: impl Into<Dims<usize>>,
        stride: impl Into<Dims<isize>>,
        storage_offset: usize,
    ) -> Result<Self> {
        let (size, stride) = (size.into(), stride.into());
        if size.len() != stride.len() {
            let detail = format!("{} sizes and {} strides", size.len(), stride.len());
            return Err(Error::mismatch(Rule::Rank, detail));
        }
        if size.len() > MAX_RANK {
            return Err(Error::new(Rule::Rank, format!("{} dimensions", size.len())));
        }
        check_numel(&size)?;
        Ok(Header { dtype, size, stride, storage_offset, dim_names: Vec::new() })
    }

    /// Creates the header of a new tensor: row-major, with offset 0 and without names.
    ///
    /// ```
    /// # use stridemap_format::{DType, Header};
    /// assert_eq!(Header::contiguous(DType::I64, &[2, 3, 4])?.stride(), [12, 4, 1]);
    /// # Ok::<(), stridemap_format::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Rule::Rank`] for more than 64 dimensions; [`Rule::Numel`] for too many elements.
    pub fn contiguous(dtype: DType, size: &[usize]) -> Result<Self> {
        Header::new(dtype, size, contiguous_strides(size)?, 0)
    }

    /// Returns the header with another storage offset.
    #[must_use]
    pub fn with_storage_offset(self, storage_offset: usize) -> Self {
        Header { storage_offset, ..self }
    }

    /// Returns the header with other names of dimensions: one for each, or `None`.
    ///
    /// ```
    /// # use stridemap_format::{DType, Header};
    /// let image = Header::contiguous(DType::F32, &[2, 3])?.with_dim_names([Some("row".into()), None])?;
    /// assert_eq!(image.dim_names().and_then(|names| names[0].as_deref()), Some("row"));
    /// # Ok::<(), stridemap_format::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Rule::DimNames`] for a name that is not an identifier or occurs twice, and for too many or too few.
    pub fn with_dim_names(mut self, names: impl IntoIterator<Item = Option<Arc<str>>>) -> Result<Self> {
        self.dim_names = names.into_iter().collect();
        let (count, rank) = (self.dim_names.len(), self.ndim());
        if count != 0 && count != rank {
            return Err(Error::mismatch(Rule::DimNames, format!("{count} names for {rank} dimensions")));
        }
        if self.dim_names.iter().all(Option::is_none) {
            self.dim_names = Vec::new();
            return Ok(self);
        }
        let mut seen = BTreeSet::new();
        for name in self.dim_names.iter().flatten() {
            check_dim_name(name)?;
            if !seen.insert(name) {
                return Err(Error::new(Rule::DimNames, format!("dimension name {name:?} appears twice")));
            }
        }
        Ok(self)
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the size of each dimension.
    #[must_use]
    pub fn size(&self) -> &[usize] {
        &self.size
    }

    /// Returns the stride of each dimension.
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        &self.stride
    }

    /// Returns the position in the storage of the element at index 0, 0, ...
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.storage_offset
    }

    /// Returns a name or `None` for each dimension, if any has a name.
    #[must_use]
    pub fn dim_names(&self) -> Option<&[Option<Arc<str>>]> {
        if self.dim_names.is_empty() { None } else { Some(&self.dim_names) }
    }

    /// Returns the number of dimensions.
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.size.len()
    }

    /// Returns pairs of size and stride, outermost first.
    pub fn dims(&self) -> impl DoubleEndedIterator<Item = (usize, isize)> + ExactSizeIterator + Clone + '_ {
        self.size.iter().copied().zip(self.stride.iter().copied())
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        if self.size.contains(&0) { 0 } else { self.size.iter().fold(1, |numel, &n| numel.saturating_mul(n)) }
    }

    /// Returns the size of the elements in bytes, without gaps: their number times the size of one.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.numel().saturating_mul(self.dtype.itemsize())
    }

    /// Returns whether the elements are adjacent in row-major order. As in PyTorch, an empty tensor is contiguous,
    /// and strides of dimensions of size 1 are ignored.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1usize;
        let is_next = |(size, stride): (usize, isize)| {
            let fits = usize::try_from(stride) == Ok(expected);
            expected = expected.saturating_mul(size);
            fits
        };
        self.numel() == 0 || self.dims().rev().filter(|&(size, _)| size != 1).all(is_next)
    }

    /// Returns the range of bytes that the elements cover in a storage of `length_bytes`.
    ///
    /// # Errors
    /// [`Rule::Extent`] if the range is not inside the storage.
    pub fn extent(&self, length_bytes: u64) -> Result<Extent> {
        let dims = self.dims().map(|(size, stride)| (size as i128, stride as i128));
        Extent::of(dims, self.storage_offset as i128, self.dtype, length_bytes)
    }

    /// Returns the smallest range of bytes that contains all elements, or `None` if there are no elements, or no storage
    /// is long enough for them. The tensor can skip bytes inside the range.
    #[must_use]
    pub fn byte_range(&self) -> Option<Range<u64>> {
        let extent = self.extent(i64::MAX as u64).ok().filter(|extent| extent.span_bytes() > 0)?;
        Some(extent.start_bytes()..extent.end_bytes())
    }
}

/// The form shown in errors.
impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size {:?} with stride {:?}", self.size, self.stride)
    }
}

/// Returns the strides of a row-major tensor.
fn contiguous_strides(size: &[usize]) -> Result<Dims<isize>> {
    let mut step = Some(1isize);
    let mut strides: Dims<isize> = size.iter().map(|_| 1).collect();
    for (stride, &n) in strides.iter_mut().zip(size).rev() {
        *stride = step.ok_or_else(|| {
            Error::new(Rule::Numel, format!("size {size:?}: a stride does not fit in 64 bits"))
        })?;
        step = isize::try_from(n.max(1)).ok().and_then(|n| stride.checked_mul(n));
    }
    Ok(strides)
}

/// Checks the name of a dimension: 1 to 255 ASCII letters, digits and `_`, and no digit at the beginning (F-9).
fn check_dim_name(name: &str) -> Result<()> {
    let mut chars = name.chars();
    let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if starts && chars.all(|c| c.is_ascii_alphanumeric() || c == '_') && name.len() <= MAX_DIM_NAME_BYTES {
        return Ok(());
    }
    Err(Error::new(Rule::DimNames, format!("dimension name {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_disagree_are_refused() {
        let refused =
            |size: &[usize], stride: &[isize]| Header::new(DType::F32, size, stride, 0).unwrap_err().rule();
        assert_eq!(refused(&[3, 2, 1], &[2, 1]), Rule::Rank);
        assert_eq!(refused(&[1; 65], &[1; 65]), Rule::Rank);
        assert_eq!(refused(&[1 << 32, 1 << 32], &[1, 1]), Rule::Numel);
        let named = |names: &[Option<&str>]| {
            let names = names.iter().map(|name| name.map(Into::into));
            Header::contiguous(DType::F32, &[3, 2]).unwrap().with_dim_names(names)
        };
        for names in [&[Some("a")][..], &[Some("a"), Some("a")], &[Some("a b"), None], &[Some("0"), None]] {
            assert_eq!(named(names).unwrap_err().rule(), Rule::DimNames, "{names:?}");
        }
        assert_eq!(named(&[None, None]).unwrap().dim_names(), None);
        assert_eq!(named(&[None, Some("a")]).unwrap().dim_names().map(<[_]>::len), Some(2));
    }

    #[test]
    fn a_row_major_header_may_have_sizes_of_zero() {
        let strides =
            |size: &[usize]| Header::contiguous(DType::U8, size).map(|header| header.stride().to_vec());
        assert_eq!(strides(&[]).unwrap(), [0; 0]);
        assert_eq!(strides(&[2, 0, 3]).unwrap(), [3, 3, 1]);
        assert_eq!(strides(&[1 << 40, 1 << 40, 0]).unwrap(), [1 << 40, 1, 1]);
        assert_eq!(strides(&[0, 1 << 40, 1 << 40]).unwrap_err().rule(), Rule::Numel);
    }
}
