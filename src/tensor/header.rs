use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::DType;

use super::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
use crate::storage::{AlignedBytes, ExternalFile, Identity, Storage};

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

    /// A tensor whose storage is a range of a file, in bytes. No element is read. Tensors on the same range of one file share
    /// their storage.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use stridemap::{DType, ExternalFile, Layout, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.bin");
    /// std::fs::write(&path, b"head0123")?;
    /// let file = Arc::new(ExternalFile::open(&path)?);
    /// let digits = Tensor::from_file(&file, 4..8, DType::U8, Layout::contiguous(&[2, 2])?)?;
    /// let even = Tensor::from_file(&file, 4..8, DType::U8, Layout::new(vec![2], vec![2], 0)?)?;
    /// assert_eq!((even.read::<u8>()?.as_slice(), even.shares_storage(&digits)), (&b"02"[..], true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for a range that leaves the file, and for a layout that leaves the range. Reading elements
    /// after the file was changed is [`ErrorKind::ExternalChanged`].
    pub fn from_file(
        file: &Arc<ExternalFile>,
        range: Range<u64>,
        dtype: DType,
        layout: Layout,
    ) -> Result<Tensor> {
        file.check_range(&range)?;
        let storage = Storage::of_range(file, range.start, range.end - range.start);
        Tensor::new(storage, dtype, layout).map_err(|e| Error::refused(file.path().display(), e))
    }

    /// A view of the same storage. Every layout operation keeps inside the elements that it was given.
    pub(super) fn with_layout(&self, dtype: DType, layout: Layout) -> Tensor {
        debug_assert!(
            layout.extent(dtype, self.storage.length_bytes()).is_ok(),
            "{layout:?} of {dtype} leaves the storage of {self:?}"
        );
        Tensor { storage: Arc::clone(&self.storage), dtype, layout }
    }

    /// Zeros, in row-major order.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F16, &[2, 3])?;
    /// assert_eq!((x.dtype(), x.numel(), x.nbytes()), (DType::F16, 6, 12));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for more than 64 dimensions, or when there is not so much memory.
    pub fn zeros(dtype: DType, size: &[usize]) -> Result<Tensor> {
        Tensor::filled(dtype, Layout::contiguous(size)?, |_| Ok(()))
    }

    /// Takes elements over, in row-major order, without copying them.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1f32, 2., 3., 4.], &[2, 2])?;
    /// assert_eq!(x.get::<f32>([1, 0])?, 3.);
    /// assert!(Tensor::from_vec(vec![1f32], &[2, 2]).is_err());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when `size` does not hold as many elements; [`ErrorKind::LimitExceeded`] for more
    /// than 64 dimensions.
    pub fn from_vec<T: Element>(elements: Vec<T>, size: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(size)?;
        if layout.numel() != elements.len() {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!("size {size:?} holds {} elements, and {} were given", layout.numel(), elements.len()),
            ));
        }
        Ok(Tensor::over(elements, layout))
    }

    /// Takes elements over, which the layout does not leave.
    pub(crate) fn over<T: Element>(elements: Vec<T>, layout: Layout) -> Tensor {
        struct Elements<T>(Vec<T>);
        impl<T: Element> AsRef<[u8]> for Elements<T> {
            fn as_ref(&self) -> &[u8] {
                T::as_bytes(&self.0)
            }
        }
        let storage = Storage::on_heap(Elements(elements));
        debug_assert!(layout.extent(T::DTYPE, storage.length_bytes()).is_ok(), "{layout:?}");
        Tensor { storage, dtype: T::DTYPE, layout }
    }

    /// Copies the bytes of elements of any dtype, in row-major order and little-endian.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::from_bytes(DType::U16, &[2], &[1, 0, 0, 1])?;
    /// assert_eq!(x.read::<u16>()?, [1, 256]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
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
        layout: Layout,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Tensor> {
        let mut bytes = AlignedBytes::zeroed(layout.numel().saturating_mul(dtype.itemsize()))?;
        fill(bytes.as_mut())?;
        Ok(Tensor { storage: Storage::on_heap(bytes), dtype, layout })
    }

    /// The type of the elements.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// assert_eq!(Tensor::from_vec(vec![1i16], &[1])?.dtype(), DType::I16);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each dimension, in elements.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert_eq!(x.size(), [2, 3]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn size(&self) -> &[usize] {
        self.layout.size()
    }

    /// [`size`](Self::size), by NumPy's and `ndarray`'s name.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?;
    /// assert_eq!(x.shape(), [2, 3]);
    /// assert_eq!(x.view(x.shape())?.shape(), x.size());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.size()
    }

    /// For each dimension, how many elements of the storage lie between one index and the next: negative for a
    /// reversed dimension, zero for a repeated one.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert_eq!(x.stride(), [3, 1]);
    /// assert_eq!(x.flip(0)?.stride(), [-3, 1]);
    /// assert_eq!(x.unsqueeze(0)?.expand([5, 2, 3])?.stride(), [0, 3, 1]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        self.layout.stride()
    }

    /// Where in the storage the element of index 0, 0, ... stands, in elements.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert_eq!(x.select(0, 1)?.storage_offset(), 3);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.layout.offset()
    }

    /// The number of dimensions.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// assert_eq!(Tensor::from_vec(vec![0u8; 6], &[2, 3])?.ndim(), 2);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.layout.rank()
    }

    /// The number of elements: 1 without dimensions.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// assert_eq!(Tensor::from_vec(vec![0u8; 6], &[2, 3])?.numel(), 6);
    /// assert_eq!(Tensor::from_vec(vec![0u8], &[])?.numel(), 1);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// The bytes that the elements would take if they stood alone: `numel` times the size of one.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// assert_eq!(Tensor::from_vec(vec![0f32; 6], &[2, 3])?.select(0, 0)?.nbytes(), 12);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.numel().saturating_mul(self.dtype.itemsize())
    }

    /// Whether the elements stand one after another in row-major order, by PyTorch's rule: dimensions of size 1 do not
    /// matter, and no elements are contiguous.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert!(x.is_contiguous() && !x.t()?.is_contiguous());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether the elements of a batch of images, by dimensions N, C, H, W, stand in memory with the channels
    /// innermost: PyTorch's `is_contiguous(memory_format=torch.channels_last)`. A query of the strides: images of one
    /// channel are in both orders.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let images = Tensor::from_vec(vec![0u8; 2 * 4 * 4 * 3], &[2, 4, 4, 3])?; // N, H, W, C
    /// assert!(images.permute([0, 3, 1, 2])?.is_channels_last());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn is_channels_last(&self) -> bool {
        self.ndim() == 4 && self.layout.is_channels_last()
    }

    /// As [`is_channels_last`](Self::is_channels_last), for N, C, D, H, W.
    #[must_use]
    pub fn is_channels_last_3d(&self) -> bool {
        self.ndim() == 5 && self.layout.is_channels_last()
    }

    /// Whether two indices lead to one element, as in an expanded or unfolded tensor. Exact, but for tensors of many
    /// dimensions with strides that nobody uses: of those it may say so when none do.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1u8, 2, 3], &[3])?;
    /// assert!(x.unfold(0, 2, 1)?.overlaps_itself() && !x.flip(0)?.overlaps_itself());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn overlaps_itself(&self) -> bool {
        self.layout.overlaps_itself()
    }

    /// Whether the two have a byte in common: they [share a storage](Self::shares_storage), and an element of one
    /// overlaps an element of the other. As exact as [`overlaps_itself`](Self::overlaps_itself).
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// let (left, right) = (x.select(1, 0)?, x.select(1, 2)?);
    /// assert!(left.overlaps(&x) && !left.overlaps(&right));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn overlaps(&self, other: &Tensor) -> bool {
        self.shares_storage(other)
            && self.layout.overlaps(self.dtype.itemsize(), &other.layout, other.dtype.itemsize())
    }

    /// The bytes of the storage underneath, those that this tensor does not reach included.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert_eq!(x.select(0, 0)?.storage_nbytes(), 6);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn storage_nbytes(&self) -> u64 {
        self.storage.length_bytes()
    }

    /// The id of the storage in its store; none on the heap, or before its transaction commits.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// assert_eq!(store.load("x")?.storage_id(), Some(1));
    /// assert_eq!(store.load("x")?.clone_data()?.storage_id(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn storage_id(&self) -> Option<u64> {
        match self.storage.identity() {
            Identity::Stored { id, .. } => Some(*id),
            Identity::Heap | Identity::Foreign | Identity::Staged { .. } => None,
        }
    }

    /// Whether the two stand on one storage, in whatever part of it. Storages in files are told by the file: a copy of a
    /// store shares nothing with it.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert!(x.t()?.shares_storage(&x) && !x.clone_data()?.shares_storage(&x));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        self.storage.is_same(&other.storage)
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
        let (dtype, size, stride) = (self.dtype(), self.size(), self.stride());
        write!(
            f,
            "Tensor({dtype}, size {size:?}, stride {stride:?}, storage_offset {}",
            self.storage_offset()
        )?;
        if self.layout.has_names() {
            write!(f, ", names {:?}", self.names())?;
        }
        write!(f, ", storage {})", self.storage.identity())
    }
}
