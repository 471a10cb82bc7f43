//! Copying and borrowing the elements of a tensor.

use std::ops::Range;

use stridemap_format::{DType, Header};

use super::element::Element;
use super::{Tensor, copy};
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::layout::{self, Integers};

/// Copying and borrowing elements.
///
/// Copies are in row-major order, whatever the strides, and work for every tensor. Borrows need elements in memory: a
/// tensor on the heap, or one from a store opened with [`Store::open_mapped`](crate::Store::open_mapped).
///
/// Elements of a mutable storage are copied under its shared lock, so a copy contains no half of a change that was made
/// under an exclusive guard. Like [`lock_shared`](Self::lock_shared), each method that reads elements therefore waits
/// while another thread or process changes them. It fails with [`ErrorKind::Busy`] after the lock timeout, or at once if
/// this thread holds an exclusive guard of the storage: read through that guard then. It fails with
/// [`ErrorKind::Interrupted`] if a writer [ended in the middle of a change](Tensor::allow_interrupted). The same applies to saving,
/// exporting, printing, conversions, statistics, and operands. Two reads may find different elements: to read one
/// state several times, hold a guard. If another process changes elements of a live storage during a copy, the copy may
/// contain half-written elements; [`as_live`](Self::as_live) reads whole elements.
impl Tensor {
    /// Copies all elements, in row-major order.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// assert_eq!(x.t()?.read::<i32>()?, [1, 3, 2, 4]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`]; [`ErrorKind::InvalidArgument`] for bytes that are not a valid `bool`;
    /// [`ErrorKind::OutOfMemory`] if there is not enough memory; [`ErrorKind::Io`].
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        self.check_dtype::<T>("read")?;
        let mut elements = T::zeros(self.numel())?;
        self.read_into(&mut elements)?;
        Ok(elements)
    }

    /// Copies all elements into `out`, in row-major order.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// let mut row = [0; 2];
    /// x.select(0, 1)?.read_into(&mut row)?;
    /// assert_eq!(row, [3, 4]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`]; [`ErrorKind::SizeMismatch`] unless the length of `out` is the number of
    /// elements; [`ErrorKind::InvalidArgument`] for bytes that are not a valid `bool`; [`ErrorKind::Io`].
    pub fn read_into<T: Element>(&self, out: &mut [T]) -> Result<()> {
        self.check_dtype::<T>("read_into")?;
        if out.len() != self.numel() {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!(
                    "read_into: size {:?} holds {} elements, but the slice has length {}",
                    self.size(),
                    self.numel(),
                    out.len()
                ),
            ));
        }
        let steady = self.steady()?;
        T::fill(out, &mut |bytes| copy::gather(&steady, bytes))
    }

    /// Returns the only element.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// assert_eq!(x.select(0, 1)?.select(0, 0)?.item::<i32>()?, 3);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] unless there is exactly one element; [`ErrorKind::DTypeMismatch`];
    /// [`ErrorKind::Io`].
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                format!("item: size {:?} holds {} elements, not one", self.size(), self.numel()),
            ));
        }
        let mut element = [T::default()];
        self.read_into(&mut element)?;
        let [element] = element;
        Ok(element)
    }

    /// Returns the element at an index with one position per dimension. Negative positions count from the end.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// assert_eq!(x.get::<i32>([1, -1])?, 4);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for a position that does not exist, or for too many positions;
    /// [`ErrorKind::SizeMismatch`] for too few positions; [`ErrorKind::DTypeMismatch`]; [`ErrorKind::Io`].
    pub fn get<T: Element>(&self, index: impl Integers) -> Result<T> {
        let offset = layout::offset_of(self.header(), "get", &index)?;
        self.with_header(Header::new(self.dtype(), [], [], offset).refused_to("get")?).item()
    }

    /// Borrows the elements of a contiguous tensor.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// assert_eq!(x.select(0, 1)?.as_slice::<i32>()?, [3, 4]);
    /// assert!(x.t()?.as_slice::<i32>().is_err());
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`]; [`ErrorKind::NeedsCopy`] if the elements are not contiguous or not aligned, for a
    /// file that is not mapped, and for a mutable or live storage: [`read`](Self::read) works then.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_slice::<T>("as_slice")?;
        self.borrow_span::<T>("as_slice")
    }

    /// Checks that the elements are of type `T` and contiguous.
    pub(super) fn check_slice<T: Element>(&self, op: &str) -> Result<()> {
        self.check_dtype::<T>(op)?;
        if self.is_contiguous() {
            return Ok(());
        }
        let advice = match op {
            "typed" => "ArrayView::try_from, contiguous()?.typed() or read",
            "as_slice_mut" => "ArrayViewMut::try_from, contiguous or read",
            _ => "ArrayView::try_from, contiguous or read",
        };
        Err(Error::new(
            ErrorKind::NeedsCopy,
            format!(
                "{op}: size {:?} with stride {:?} is not contiguous; use {advice}",
                self.size(),
                self.stride()
            ),
        ))
    }

    /// Borrows the part of the storage from the lowest to the highest element.
    pub(crate) fn borrow_span<T: Element>(&self, op: &str) -> Result<&[T]> {
        if self.storage().as_mutable().is_some() && self.numel() > 0 {
            let message = format!(
                "{op}: elements of a mutable storage can be borrowed only under a lock; use lock_shared or read"
            );
            return Err(Error::new(ErrorKind::NeedsCopy, message));
        }
        if self.storage().as_live().is_some() && self.numel() > 0 {
            let message = format!(
                "{op}: elements of a live storage cannot be borrowed, because they may change at any time; use as_live \
                 for single elements, or read to copy them"
            );
            return Err(Error::new(ErrorKind::NeedsCopy, message));
        }
        self.borrow_span_in(op, self.borrow_storage()?)
    }

    /// Like `borrow_span`, but for the given bytes of the storage.
    pub(super) fn borrow_span_in<'a, T: Element>(
        &self,
        op: &str,
        bytes: Option<&'a [u8]>,
    ) -> Result<&'a [T]> {
        if self.numel() == 0 {
            // An empty tensor needs no mapping and no alignment.
            return Ok(&[]);
        }
        let bytes = bytes.ok_or_else(|| not_mapped(op))?;
        T::borrow(bytes.get(self.byte_span(op)?).unwrap_or_default()).ok_or_else(|| not_borrowable::<T>(op))
    }

    /// Returns the byte range of the storage from the lowest to the highest element.
    pub(super) fn byte_span(&self, op: &str) -> Result<Range<usize>> {
        let extent = self.header().extent(self.storage().length_bytes());
        let extent = extent.refused_to(op)?;
        Ok(extent.start_bytes() as usize..extent.end_bytes() as usize)
    }

    /// Copies all elements as little-endian bytes, in row-major order. This works for every dtype.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1u16, 256], &[2])?;
    /// assert_eq!(x.to_bytes()?, [1, 0, 0, 1]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if there is not enough memory; [`ErrorKind::Io`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = <u8 as super::element::sealed::Sealed>::zeros(self.nbytes())?;
        copy::gather(&*self.steady()?, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn check_dtype<T: Element>(&self, op: &str) -> Result<()> {
        if self.dtype() == T::DTYPE {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::DTypeMismatch,
            format!(
                "{op}::<{}>: the elements are {}, not {}; use the type of the elements",
                std::any::type_name::<T>(),
                self.dtype(),
                T::DTYPE
            ),
        ))
    }
}

pub(super) fn invalid_bools() -> Error {
    let why =
        "some bytes are neither 0 nor 1, so they are not valid bools; read them with view_dtype as uint8";
    Error::new(ErrorKind::InvalidArgument, why)
}

pub(super) fn not_mapped(op: &str) -> Error {
    Error::new(
        ErrorKind::NeedsCopy,
        format!(
            "{op}: the storage is a file that is not mapped; open the store with open_mapped, or use read"
        ),
    )
}

/// Explains why elements cannot be borrowed. Bools need no alignment, but not every byte is a valid bool.
pub(super) fn not_borrowable<T: Element>(op: &str) -> Error {
    if T::DTYPE == DType::Bool {
        return invalid_bools().context(op);
    }
    Error::new(
        ErrorKind::NeedsCopy,
        format!(
            "{op}: the elements are not aligned for {} in memory; copy them with read or clone_data",
            std::any::type_name::<T>()
        ),
    )
}
