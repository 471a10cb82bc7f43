use crate::error::{ErrorKind, Result};
use crate::layout::{Axes, Axis, Integer, Integers, Layout};
use crate::tensor::Tensor;
use crate::tensor::copy;

/// Views under other dimensions.
///
/// [`reshape`](Self::reshape), [`flatten`](Self::flatten), [`ravel`](Self::ravel) and [`contiguous`](Self::contiguous)
/// copy where PyTorch does: where strides cannot say it. [`shares_storage`](Self::shares_storage) tells whether they did.
impl Tensor {
    /// Takes axes of size 1 away; an axis of another size stays. `..` stands for all axes.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[1, 3, 1, 2])?;
    /// assert_eq!(x.stride(), [6, 2, 2, 1]);
    /// let view = x.squeeze(0)?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 1, 2][..], &[2, 2, 1][..]));
    /// assert_eq!(x.squeeze([0, 1, 2])?.size(), [3, 2]);
    /// assert_eq!(x.squeeze(..)?.size(), [3, 2]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange); [`InvalidArgument`](ErrorKind::InvalidArgument) for an axis named twice.
    pub fn squeeze<'a>(&self, axes: impl Into<Axes<'a>>) -> Result<Tensor> {
        self.viewed(self.layout().squeeze(&axes.into()))
    }

    /// Adds an axis of size 1; `axis` is where it will be.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 2])?;
    /// assert_eq!(x.stride(), [2, 1]);
    /// let view = x.unsqueeze(1)?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 1, 2][..], &[2, 2, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange); [`LimitExceeded`](ErrorKind::LimitExceeded) for a 65th axis.
    pub fn unsqueeze(&self, axis: impl Integer) -> Result<Tensor> {
        self.viewed(self.layout().unsqueeze(axis.to_isize()))
    }

    /// Repeats axes of size 1, and puts new ones in front, by strides of 0: no element is copied. A size of -1 stays what
    /// it is.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 1])?;
    /// assert_eq!(x.stride(), [1, 1]);
    /// let view = x.expand([2, -1, 4])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3, 4][..], &[0, 1, 0][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SizeMismatch`](ErrorKind::SizeMismatch) for an axis of another size than 1;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a -1 where no axis is.
    pub fn expand(&self, size: impl Integers) -> Result<Tensor> {
        self.viewed(self.layout().expand(&size.to_vec()))
    }

    /// [`expand`](Self::expand) to the size of another tensor.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 1])?;
    /// assert_eq!(x.stride(), [1, 1]);
    /// let view = x.expand_as(&Tensor::zeros(DType::I64, &[3, 4])?)?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 4][..], &[1, 0][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`expand`](Self::expand).
    pub fn expand_as(&self, other: &Tensor) -> Result<Tensor> {
        self.viewed(self.layout().expand_to(other.size()))
    }

    /// [`expand`](Self::expand), by NumPy's name.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3])?;
    /// assert_eq!(x.stride(), [1]);
    /// let view = x.broadcast_to([2, 3])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3][..], &[0, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`expand`](Self::expand).
    pub fn broadcast_to(&self, size: impl Integers) -> Result<Tensor> {
        self.expand(size)
    }

    /// The same elements in the same order under another size; one size may be -1, for what is left.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let view = x.view([2, -1])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 6][..], &[6, 1][..]));
    /// assert_eq!(x.t()?.view([12]).unwrap_err().kind(), stridemap::ErrorKind::NeedsCopy);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NeedsCopy`](ErrorKind::NeedsCopy) when no strides can say it: [`reshape`](Self::reshape) copies then.
    /// [`SizeMismatch`](ErrorKind::SizeMismatch) when the number of elements is another;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument).
    pub fn view(&self, size: impl Integers) -> Result<Tensor> {
        self.viewed(self.layout().view(&size.to_vec()))
    }

    /// [`view`](Self::view) under the size of another tensor.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// let view = x.view_as(&Tensor::zeros(DType::I64, &[2, 6])?)?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 6][..], &[6, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`view`](Self::view).
    pub fn view_as(&self, other: &Tensor) -> Result<Tensor> {
        self.view(other.size())
    }

    /// Parts one axis into several; one size may be -1, for what is left.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 12])?;
    /// assert_eq!(x.stride(), [12, 1]);
    /// let view = x.unflatten(1, [3, -1])?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 3, 4][..], &[12, 4, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SizeMismatch`](ErrorKind::SizeMismatch); [`InvalidArgument`](ErrorKind::InvalidArgument);
    /// [`OutOfRange`](ErrorKind::OutOfRange).
    pub fn unflatten<'a>(&self, axis: impl Into<Axis<'a>>, sizes: impl Integers) -> Result<Tensor> {
        self.viewed(self.layout().unflatten(axis.into(), &sizes.to_vec()))
    }

    /// [`view`](Self::view) where strides can say it, and a view of a [`contiguous`](Self::contiguous) copy elsewhere.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 4])?;
    /// assert_eq!(x.stride(), [4, 1]);
    /// assert_eq!(x.reshape([6, 2])?.stride(), [2, 1]);
    /// assert!(x.reshape([6, 2])?.shares_storage(&x));
    /// let copy = x.t()?.reshape([6, 2])?;
    /// assert_eq!((copy.size(), copy.stride()), (&[6, 2][..], &[2, 1][..]));
    /// assert!(!copy.shares_storage(&x));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`view`](Self::view) but `NeedsCopy`, and those of reading when it copies.
    pub fn reshape(&self, size: impl Integers) -> Result<Tensor> {
        let size = size.to_vec();
        self.view_or_copy(|layout| layout.view_by(format_args!("reshape({size:?})"), &size))
    }

    /// Joins the axes from `start` to `end`, that one included, as [`reshape`](Self::reshape) would. A single element
    /// becomes a vector of one.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3, 4])?;
    /// assert_eq!(x.stride(), [12, 4, 1]);
    /// let view = x.flatten(1, -1)?;
    /// assert_eq!((view.size(), view.stride()), (&[2, 12][..], &[12, 1][..]));
    /// assert!(view.shares_storage(&x));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](ErrorKind::OutOfRange); [`InvalidArgument`](ErrorKind::InvalidArgument) when `start` comes after
    /// `end`; those of reading when it copies.
    pub fn flatten<'a>(&self, start: impl Into<Axis<'a>>, end: impl Into<Axis<'a>>) -> Result<Tensor> {
        let (start, end) = (start.into(), end.into());
        self.view_or_copy(|layout| layout.flatten(start, end))
    }

    /// All elements as one axis, of a [`contiguous`](Self::contiguous) tensor.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?;
    /// assert_eq!(x.stride(), [3, 1]);
    /// let view = x.ravel()?;
    /// assert_eq!((view.size(), view.stride()), (&[6][..], &[1][..]));
    /// assert!(view.shares_storage(&x) && !x.t()?.ravel()?.shares_storage(&x));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading when it copies.
    pub fn ravel(&self) -> Result<Tensor> {
        self.contiguous()?.view([-1])
    }

    fn view_or_copy(&self, view: impl Fn(&Layout) -> Result<Layout>) -> Result<Tensor> {
        match view(self.layout()) {
            Err(e) if e.kind() == ErrorKind::NeedsCopy => {
                let copy = self.contiguous()?;
                copy.viewed(view(copy.layout()))
            }
            viewed => self.viewed(viewed),
        }
    }

    /// This tensor, if it is contiguous: the same storage. Otherwise its elements in row-major order, on the heap.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?;
    /// assert!(x.contiguous()?.shares_storage(&x));
    /// let view = x.t()?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 2][..], &[1, 3][..]));
    /// let copy = view.contiguous()?;
    /// assert_eq!((copy.size(), copy.stride()), (&[3, 2][..], &[2, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.clone_data() }
    }

    /// The elements in row-major order on the heap, always: PyTorch's `clone`, with `contiguous_format`.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?;
    /// let view = x.select(1, 0)?;
    /// assert_eq!((view.size(), view.stride()), (&[2][..], &[3][..]));
    /// let copy = view.clone_data()?;
    /// assert_eq!((copy.size(), copy.stride()), (&[2][..], &[1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading; [`LimitExceeded`](ErrorKind::LimitExceeded) when there is not so much memory.
    pub fn clone_data(&self) -> Result<Tensor> {
        Tensor::filled(self.dtype(), self.layout().compacted()?, |out| copy::gather(self, out))
    }
}
