use super::{Tensor, gather};
use crate::error::{ErrorKind, Result};
use crate::layout::Index;

/// Views: new headers over the same storage, by PyTorch's names, argument order and negative axes.
///
/// An axis may count from the end: -1 is the last. Errors of kind [`ErrorKind::OutOfRange`] name the axis, the index
/// and the size. None of these reads an element, [`contiguous`](Self::contiguous), [`reshape`](Self::reshape) and
/// [`clone_data`](Self::clone_data) aside.
impl Tensor {
    /// The elements at one position along an axis, which goes: `x.select(0, 1)` is `x[1]`.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec((0..6i64).collect(), &[3, 2])?;
    /// let row = x.select(0, -1)?;
    /// assert_eq!((row.size(), row.stride(), row.storage_offset()), (&[2][..], &[1][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn select(&self, axis: isize, index: isize) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().select(axis, index)?))
    }

    /// `length` positions along an axis from `start` on, which may count from the end.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec((0..6i64).collect(), &[3, 2])?;
    /// let rows = x.narrow(0, 1, 2)?;
    /// assert_eq!((rows.size(), rows.stride(), rows.storage_offset()), (&[2, 2][..], &[2, 1][..], 2));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] unless all of them are there; [`slice`](Self::slice) clamps instead.
    pub fn narrow(&self, axis: isize, start: isize, length: usize) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().narrow(axis, start, length)?))
    }

    /// The positions of a Python slice `start:end:step` along an axis. Bounds may be left out, may count from the end,
    /// and are clamped; a negative step runs backwards.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec((0..6i64).collect(), &[6])?;
    /// let even = x.slice(0, None, None, 2)?;
    /// assert_eq!((even.size(), even.stride(), even.storage_offset()), (&[3][..], &[2][..], 0));
    /// let backwards = x.slice(0, Some(4), Some(0), -2)?;
    /// assert_eq!((backwards.size(), backwards.stride(), backwards.storage_offset()), (&[2][..], &[-2][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for an axis that is not there; [`ErrorKind::InvalidArgument`] for a step of 0.
    pub fn slice(
        &self,
        axis: isize,
        start: Option<isize>,
        end: Option<isize>,
        step: isize,
    ) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().slice(axis, start, end, step)?))
    }

    /// A subscript: `x[1, ::2, ..., None]`, one [`Index`] a place. Axes that are not named stay whole.
    ///
    /// ```
    /// use stridemap::{Index, Tensor};
    ///
    /// let x = Tensor::from_vec((0..24i64).collect(), &[2, 3, 4])?;
    /// let view = x.index(&[Index::At(1), Index::Ellipsis, Index::Slice { start: None, end: None, step: 2 }])?;
    /// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3, 2][..], &[4, 2][..], 12));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`], [`ErrorKind::InvalidArgument`].
    pub fn index(&self, subscript: &[Index]) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().index(subscript)?))
    }

    /// Exchanges two axes.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec(vec![1f32; 60], &[3, 4, 5])?;
    /// let view = x.transpose(0, 2)?;
    /// assert_eq!((view.size(), view.stride()), (&[5, 4, 3][..], &[1, 5, 20][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`].
    pub fn transpose(&self, axis0: isize, axis1: isize) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().transpose(axis0, axis1)?))
    }

    /// Exchanges the two axes of a matrix; a vector or a single element stays as it is.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec(vec![1f32; 6], &[3, 2])?;
    /// let view = x.t()?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3][..], &[1, 2][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for more than two axes.
    pub fn t(&self) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().t()?))
    }

    /// Puts the axes in another order: axis `axes[i]` becomes axis `i`.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec(vec![1f32; 60], &[3, 4, 5])?;
    /// let view = x.permute(&[2, 0, 1])?;
    /// assert_eq!((view.size(), view.stride()), (&[5, 3, 4][..], &[1, 20, 5][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] unless each axis stands once; [`ErrorKind::OutOfRange`].
    pub fn permute(&self, axes: &[isize]) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().permute(axes)?))
    }

    /// Reverses the order along each of the axes. PyTorch copies here; a negative stride says it for free.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec(vec![1f32; 6], &[3, 2])?;
    /// let view = x.flip(&[0])?;
    /// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3, 2][..], &[-2, 1][..], 4));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an axis named twice; [`ErrorKind::OutOfRange`].
    pub fn flip(&self, axes: &[isize]) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().flip(axes)?))
    }

    /// The same elements in the same order under another size; one size may be -1, for what is left.
    ///
    /// ```
    /// # let x = stridemap::Tensor::from_vec(vec![1f32; 12], &[3, 4])?;
    /// let view = x.view(&[2, -1])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 6][..], &[6, 1][..]));
    /// assert_eq!(x.t()?.view(&[12]).unwrap_err().kind(), stridemap::ErrorKind::NeedsCopy);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NeedsCopy`] when no strides can say it: [`reshape`](Self::reshape) copies then.
    /// [`ErrorKind::SizeMismatch`] when the number of elements is another; [`ErrorKind::InvalidArgument`].
    pub fn view(&self, size: &[isize]) -> Result<Tensor> {
        Ok(self.with_layout(self.layout().view(size)?))
    }

    /// [`view`](Self::view) where strides can say it, and a view of a [`contiguous`](Self::contiguous) copy elsewhere.
    ///
    /// # Errors
    /// As [`view`](Self::view), and those of reading when it copies.
    pub fn reshape(&self, size: &[isize]) -> Result<Tensor> {
        match self.view(size) {
            Err(e) if e.kind() == ErrorKind::NeedsCopy => self.contiguous()?.view(size),
            viewed => viewed,
        }
    }

    /// This tensor, if it is contiguous: the same storage. Otherwise its elements in row-major order, on the heap.
    ///
    /// # Errors
    /// Those of reading.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.clone_data() }
    }

    /// The elements in row-major order on the heap, always: PyTorch's `clone`.
    ///
    /// # Errors
    /// Those of reading; [`ErrorKind::LimitExceeded`] when there is not so much memory.
    pub fn clone_data(&self) -> Result<Tensor> {
        Tensor::filled(self.dtype(), self.size(), |out| gather::gather(self, out))
    }
}
