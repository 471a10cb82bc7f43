use std::fmt;
use std::sync::Arc;

use stridemap_format::DType;

use super::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
use crate::storage::{AlignedBytes, Identity, Storage};

/// A header over a storage: dtype, size, stride and storage offset. Cheap to clone: the storage is shared.
///
/// The storage is a file of a store, or memory. Views ([`t`](Self::t), [`slice`](Self::slice), ...) are new headers
/// over the same storage and never read an element. An element is read by [`read`](Self::read) and its kin, which
/// copy, or borrowed by [`as_slice`](Self::as_slice) and [`as_array`](Self::as_array), which do not.
///
/// ```
/// use stridemap::Tensor;
///
/// let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
/// assert_eq!((points.size(), points.stride(), points.storage_offset()), (&[3, 2][..], &[2, 1][..], 0));
/// let second = points.select(0, 1)?;
/// assert_eq!((second.size(), second.stride(), second.storage_offset()), (&[2][..], &[1][..], 2));
/// assert_eq!(second.read::<f32>()?, [2., 1.]);
/// # Ok::<(), stridemap::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    dtype: DType,
    layout: Layout,
}

impl Tensor {
    /// # Errors
    /// A broken extent rule: an element outside the storage.
    pub(crate) fn new(
        storage: Arc<Storage>,
        dtype: DType,
        layout: Layout,
    ) -> Result<Self, stridemap_format::Error> {
        layout.extent(dtype, storage.length_bytes())?;
        Ok(Tensor { storage, dtype, layout })
    }

    /// A view of the same storage. Every layout operation keeps inside the elements that it was given.
    pub(super) fn with_layout(&self, layout: Layout) -> Tensor {
        debug_assert!(
            layout.extent(self.dtype, self.storage.length_bytes()).is_ok(),
            "{layout:?} leaves the storage of {self:?}"
        );
        Tensor { storage: Arc::clone(&self.storage), dtype: self.dtype, layout }
    }

    /// Takes elements over, in row-major order, without copying them.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when `size` does not hold as many elements; [`ErrorKind::LimitExceeded`] for more
    /// than 64 dimensions.
    pub fn from_vec<T: Element>(elements: Vec<T>, size: &[usize]) -> Result<Tensor> {
        struct Elements<T>(Vec<T>);
        impl<T: Element> AsRef<[u8]> for Elements<T> {
            fn as_ref(&self) -> &[u8] {
                T::as_bytes(&self.0)
            }
        }
        let layout = Layout::contiguous(size)?;
        if layout.numel() != elements.len() {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!("size {size:?} holds {} elements, and {} were given", layout.numel(), elements.len()),
            ));
        }
        Ok(Tensor { storage: Storage::on_heap(Elements(elements)), dtype: T::DTYPE, layout })
    }

    /// Copies the bytes of elements of any dtype, in row-major order and little-endian.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when `size` does not hold as many bytes; [`ErrorKind::LimitExceeded`] for more than
    /// 64 dimensions.
    pub fn from_bytes(dtype: DType, size: &[usize], bytes: &[u8]) -> Result<Tensor> {
        let layout = Layout::contiguous(size)?;
        let expected_bytes = layout.numel().checked_mul(dtype.itemsize());
        if expected_bytes != Some(bytes.len()) {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!(
                    "size {size:?} of {dtype} holds {} elements, and {} bytes were given",
                    layout.numel(),
                    bytes.len()
                ),
            ));
        }
        let mut copy = AlignedBytes::zeroed(bytes.len())?;
        copy.as_mut().copy_from_slice(bytes);
        Ok(Tensor { storage: Storage::on_heap(copy), dtype, layout })
    }

    /// A fresh row-major tensor on the heap that `fill` writes.
    pub(super) fn filled(
        dtype: DType,
        size: &[usize],
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Tensor> {
        let layout = Layout::contiguous(size)?;
        let mut bytes = AlignedBytes::zeroed(layout.numel().saturating_mul(dtype.itemsize()))?;
        fill(bytes.as_mut())?;
        Ok(Tensor { storage: Storage::on_heap(bytes), dtype, layout })
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each dimension, in elements.
    #[must_use]
    pub fn size(&self) -> &[usize] {
        self.layout.size()
    }

    /// For each dimension, how many elements of the storage lie between one index and the next: negative for a
    /// reversed dimension, zero for a repeated one.
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        self.layout.stride()
    }

    /// Where in the storage the element of index 0, 0, ... stands, in elements.
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.layout.offset()
    }

    /// The number of dimensions.
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.layout.rank()
    }

    /// The number of elements: 1 without dimensions.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// The bytes that the elements would take if they stood alone: `numel` times the size of one.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.numel().saturating_mul(self.dtype.itemsize())
    }

    /// Whether the elements stand one after another in row-major order, by PyTorch's rule: dimensions of size 1 do not
    /// matter, and no elements are contiguous.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The bytes of the storage underneath, those that this tensor does not reach included.
    #[must_use]
    pub fn storage_nbytes(&self) -> u64 {
        self.storage.length_bytes()
    }

    /// The id of the storage in its store; none on the heap, or before its transaction commits.
    #[must_use]
    pub fn storage_id(&self) -> Option<u64> {
        match self.storage.identity() {
            Identity::Stored { id, .. } => Some(*id),
            Identity::Heap | Identity::Staged { .. } => None,
        }
    }

    /// Whether the two stand on one storage, in whatever part of it.
    #[must_use]
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        match (self.storage.identity(), other.storage.identity()) {
            (Identity::Heap, Identity::Heap) => Arc::ptr_eq(&self.storage, &other.storage),
            (
                Identity::Stored { store, id, .. },
                Identity::Stored { store: other_store, id: other_id, .. },
            ) => (store, id) == (other_store, other_id),
            (identity, other_identity) => identity == other_identity,
        }
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// The header, not the elements.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("dtype", &self.dtype)
            .field("size", &self.size())
            .field("stride", &self.stride())
            .field("storage_offset", &self.storage_offset())
            .field("storage", &self.storage)
            .finish()
    }
}
