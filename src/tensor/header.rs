//! The tensor type.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::{DType, Header};

use super::Element;
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::layout;
use crate::storage::{AlignedBytes, ExternalFile, Identity, Storage};

/// A tensor: dtype, size, stride and storage offset over a shared storage. Cloning is cheap and shares the storage.
///
/// The storage is a file of a store, part of a file outside a store, or memory. Views ([`t`](Self::t),
/// [`slice`](Self::slice), ...) are new headers over the same storage and never read an element. [`read`](Self::read)
/// and related methods copy elements; [`as_slice`](Self::as_slice) and `ArrayView::try_from` of `ndarray` borrow them.
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
#[must_use = "a view of a tensor changes nothing; write `let _ =` for a tensor that is created now and loaded later"]
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    /// Shared with the clones of the tensor, and with the record that it was loaded from.
    header: Arc<Header>,
}

impl Tensor {
    /// Creates a tensor, and checks that its elements are inside the storage.
    ///
    /// # Errors
    /// An error with the violated extent rule, if an element is outside the storage.
    pub(crate) fn new(
        storage: Arc<Storage>,
        header: impl Into<Arc<Header>>,
    ) -> Result<Self, stridemap_format::Error> {
        let header = header.into();
        header.extent(storage.length_bytes())?;
        Ok(Tensor { storage, header })
    }

    /// Creates a tensor over a byte range of a file, without reading any element. Tensors over the same range of one
    /// file share their storage.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use stridemap::import::ExternalFile;
    /// use stridemap::{DType, Header, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.bin");
    /// std::fs::write(&path, b"head0123")?;
    /// let file = Arc::new(ExternalFile::open(&path)?);
    /// let digits = Tensor::from_file(&file, 4..8, Header::contiguous(DType::U8, &[2, 2])?)?;
    /// let even = Tensor::from_file(&file, 4..8, Header::new(DType::U8, [2], [2], 0)?)?;
    /// assert_eq!((even.read::<u8>()?.as_slice(), even.shares_storage(&digits)), (&b"02"[..], true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if the range exceeds the file or the elements exceed the range. Reading elements
    /// after the file has changed returns [`ErrorKind::ExternalChanged`].
    pub fn from_file(file: &Arc<ExternalFile>, range: Range<u64>, header: Header) -> Result<Tensor> {
        file.check_range(&range)?;
        let storage = Storage::of_range(file, range.start, range.end - range.start);
        Tensor::new(storage, header).refused_to(file.path().display())
    }

    /// Returns a view of the same storage. Operations of `layout` only reach elements that their input reaches, so the
    /// extent is not checked again.
    pub(super) fn with_header(&self, header: Header) -> Tensor {
        debug_assert!(
            header.extent(self.storage.length_bytes()).is_ok(),
            "{header:?} leaves the storage of {self:?}"
        );
        Tensor { storage: Arc::clone(&self.storage), header: header.into() }
    }

    /// Returns the tensor on a different handle of its storage.
    pub(super) fn on_storage(&self, storage: &Arc<Storage>) -> Tensor {
        Tensor { storage: Arc::clone(storage), header: Arc::clone(&self.header) }
    }

    /// Creates a tensor of zeros in row-major order.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F16, &[2, 3])?;
    /// assert_eq!((x.dtype(), x.numel(), x.nbytes()), (DType::F16, 6, 12));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for more than 64 dimensions; [`ErrorKind::OutOfMemory`] if there is not enough
    /// memory.
    pub fn zeros(dtype: DType, size: &[usize]) -> Result<Tensor> {
        Tensor::filled(layout::contiguous(dtype, size)?, |_| Ok(()))
    }

    /// Creates a row-major tensor that takes ownership of `elements`, without copying them.
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
    /// [`ErrorKind::SizeMismatch`] if `size` does not match the number of elements; [`ErrorKind::LimitExceeded`] for
    /// more than 64 dimensions.
    pub fn from_vec<T: Element>(elements: Vec<T>, size: &[usize]) -> Result<Tensor> {
        let header = layout::contiguous(T::DTYPE, size)?;
        if header.numel() != elements.len() {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!("size {size:?} holds {} elements, but {} were given", header.numel(), elements.len()),
            ));
        }
        Ok(Tensor::from_elements(elements, header))
    }

    /// Takes ownership of `elements`. The header must have their type, and stay within them.
    pub(crate) fn from_elements<T: Element>(elements: Vec<T>, header: Header) -> Tensor {
        struct Elements<T>(Vec<T>);
        impl<T: Element> AsRef<[u8]> for Elements<T> {
            fn as_ref(&self) -> &[u8] {
                T::as_bytes(&self.0)
            }
        }
        let storage = Storage::on_heap(Elements(elements));
        debug_assert!(header.extent(storage.length_bytes()).is_ok(), "{header:?}");
        Tensor { storage, header: header.into() }
    }

    /// Creates a tensor of any dtype from a copy of `bytes`: its elements, little-endian, in row-major order.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::from_bytes(DType::U16, &[2], &[1, 0, 0, 1])?;
    /// assert_eq!(x.read::<u16>()?, [1, 256]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] if `size` does not match the number of bytes; [`ErrorKind::LimitExceeded`] for more
    /// than 64 dimensions; [`ErrorKind::OutOfMemory`] if there is not enough memory.
    pub fn from_bytes(dtype: DType, size: &[usize], bytes: &[u8]) -> Result<Tensor> {
        let header = layout::contiguous(dtype, size)?;
        if header.nbytes() != bytes.len() {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!(
                    "size {size:?} of {dtype} holds {} elements, but {} bytes were given",
                    header.numel(),
                    bytes.len()
                ),
            ));
        }
        let mut copy = AlignedBytes::zeroed(bytes.len())?;
        copy.as_mut().copy_from_slice(bytes);
        Ok(Tensor { storage: Storage::on_heap(copy), header: header.into() })
    }

    /// Creates a row-major tensor on the heap and lets `fill` write its bytes.
    pub(super) fn filled(header: Header, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Tensor> {
        let mut bytes = AlignedBytes::zeroed(header.nbytes())?;
        fill(bytes.as_mut())?;
        Ok(Tensor { storage: Storage::on_heap(bytes), header: header.into() })
    }

    /// Returns the type of the elements.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// assert_eq!(Tensor::from_vec(vec![1i16], &[1])?.dtype(), DType::I16);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.header.dtype()
    }

    /// Returns the size of each dimension, in elements.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert_eq!(x.size(), [2, 3]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn size(&self) -> &[usize] {
        self.header.size()
    }

    /// Returns the stride of each dimension: the distance between neighboring indices in the storage, in elements. It
    /// is negative for a reversed dimension and zero for a repeated one.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert_eq!(x.stride(), [3, 1]);
    /// assert_eq!(x.flip([0])?.stride(), [-3, 1]);
    /// assert_eq!(x.unsqueeze(0)?.expand([5, 2, 3])?.stride(), [0, 3, 1]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        self.header.stride()
    }

    /// Returns the position in the storage of the element at index 0, 0, ..., in elements.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert_eq!(x.select(0, 1)?.storage_offset(), 3);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.header.storage_offset()
    }

    /// Returns the number of dimensions.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// assert_eq!(Tensor::from_vec(vec![0u8; 6], &[2, 3])?.ndim(), 2);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.header.ndim()
    }

    /// Returns the number of elements, which is 1 for a tensor without dimensions.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// assert_eq!(Tensor::from_vec(vec![0u8; 6], &[2, 3])?.numel(), 6);
    /// assert_eq!(Tensor::from_vec(vec![0u8], &[])?.numel(), 1);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn numel(&self) -> usize {
        self.header.numel()
    }

    /// Returns the size of the elements in bytes, without gaps: `numel` times the item size.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// assert_eq!(Tensor::from_vec(vec![0f32; 6], &[2, 3])?.select(0, 0)?.nbytes(), 12);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.header.nbytes()
    }

    /// Returns whether the elements are adjacent in row-major order, by PyTorch's rule: strides of dimensions of size
    /// 1 are ignored, and an empty tensor is contiguous.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0u8; 6], &[2, 3])?;
    /// assert!(x.is_contiguous() && !x.t()?.is_contiguous());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.header.is_contiguous()
    }

    /// Returns whether several indices refer to the same element, as in an expanded or unfolded tensor. The answer is
    /// exact, except for tensors with many dimensions and contrived strides, where it may be a false positive.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1u8, 2, 3], &[3])?;
    /// assert!(x.unfold(0, 2, 1)?.overlaps_itself() && !x.flip([0])?.overlaps_itself());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn overlaps_itself(&self) -> bool {
        layout::overlaps_itself(&self.header)
    }

    /// Returns whether the two tensors have a byte in common: they [share a storage](Self::shares_storage), and an
    /// element of one overlaps an element of the other. The answer is as exact as that of
    /// [`overlaps_itself`](Self::overlaps_itself).
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
        self.shares_storage(other) && layout::overlaps(&self.header, &other.header)
    }

    /// Returns the size of the whole storage in bytes, including bytes outside this tensor.
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

    /// Returns the smallest range of bytes of the storage that contains all elements, or `None` if there are no
    /// elements. A view can skip bytes inside its range.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![0f32; 6], &[2, 3])?;
    /// assert_eq!(x.select(1, 1)?.byte_range(), Some(4..20));
    /// assert_eq!(x.narrow(0, 2, 0)?.byte_range(), None);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn byte_range(&self) -> Option<Range<u64>> {
        self.header.byte_range()
    }

    /// Returns the id of the storage in its store, or `None` if it belongs to no store or its transaction has not
    /// committed yet.
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

    /// Returns the device and the inode of the file that contains the storage, as `stat` reports them, or `None` for a
    /// tensor in memory. A program that opens the file by its path can verify by them that it has the same file.
    ///
    /// ```
    /// # use std::os::unix::fs::MetadataExt as _;
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// let file = std::fs::metadata(store.path().join("storages/0000000000000001.bin"))?;
    /// assert_eq!(store.load("x")?.file_id(), Some((file.dev(), file.ino())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn file_id(&self) -> Option<(u64, u64)> {
        self.storage.file_id()
    }

    /// Returns whether the two tensors use the same storage, even if they reach different parts of it. Storages in
    /// files are compared by file, so a copy of a store shares nothing with the original.
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

    pub(crate) fn header(&self) -> &Arc<Header> {
        &self.header
    }
}

/// Shows the header without the elements.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, size, stride) = (self.dtype(), self.size(), self.stride());
        write!(
            f,
            "Tensor({dtype}, size {size:?}, stride {stride:?}, storage_offset {}",
            self.storage_offset()
        )?;
        if self.header.dim_names().is_some() {
            write!(f, ", names {:?}", self.names())?;
        }
        write!(f, ", storage {})", self.storage.identity())
    }
}
