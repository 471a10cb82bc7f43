//! Integers of any type, single or in a list, as arguments.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// An integer of any type: a position, a size or a step. Methods that take one accept a literal, a `usize` or an
/// `isize`. Each method decides whether it may be negative.
///
/// ```
/// use stridemap::Tensor;
///
/// let rows = Tensor::from_vec(vec![1f32, 2., 3., 4.], &[2, 2])?;
/// for i in 0..rows.size()[0] {
///     rows.select(0, i)?;  // a usize
/// }
/// assert_eq!(rows.select(0, -1)?.read::<f32>()?, [3., 4.]);
/// # Ok::<(), stridemap::Error>(())
/// ```
pub trait Integer: sealed::Sealed + Copy + fmt::Debug {}

/// One integer per dimension: a slice, an array or a `Vec`, a single integer for one dimension, or `()` for none.
///
/// ```
/// use stridemap::Tensor;
///
/// let x = Tensor::from_vec((0..6i64).collect(), &[2, 3])?;
/// let (row, column): (usize, usize) = (1, 2);
/// assert_eq!(x.get::<i64>([row, column])?, 5);
/// assert_eq!(x.get::<i64>(&[-1, -1])?, 5);
/// assert_eq!(x.view(-1)?.get::<i64>(row)?, 1);
/// assert_eq!(x.select(0, 0)?.select(0, 1)?.get::<i64>(())?, 1);
/// # Ok::<(), stridemap::Error>(())
/// ```
pub trait Integers: sealed::List {}

pub(crate) mod sealed {
    use super::Integer;

    pub trait Sealed {
        /// A value too large for an `isize` becomes the highest `isize`, which also exceeds every position and size.
        fn to_isize(self) -> isize;
    }

    pub trait List {
        fn each(&self) -> impl ExactSizeIterator<Item = isize> + Clone;

        fn to_vec(&self) -> Vec<isize> {
            self.each().collect()
        }
    }

    impl<N: Integer> List for [N] {
        fn each(&self) -> impl ExactSizeIterator<Item = isize> + Clone {
            self.iter().map(|&n| n.to_isize())
        }
    }

    impl<N: Integer, const LEN: usize> List for [N; LEN] {
        fn each(&self) -> impl ExactSizeIterator<Item = isize> + Clone {
            self.as_slice().each()
        }
    }

    impl<N: Integer> List for Vec<N> {
        fn each(&self) -> impl ExactSizeIterator<Item = isize> + Clone {
            self.as_slice().each()
        }
    }

    impl<L: List + ?Sized> List for &L {
        fn each(&self) -> impl ExactSizeIterator<Item = isize> + Clone {
            (**self).each()
        }
    }

    impl List for () {
        fn each(&self) -> impl ExactSizeIterator<Item = isize> + Clone {
            std::iter::empty()
        }
    }
}

impl<L: sealed::List + ?Sized> Integers for L {}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Integer for $type {}

        impl sealed::Sealed for $type {
            fn to_isize(self) -> isize {
                self.try_into().unwrap_or(isize::MAX)
            }
        }

        impl sealed::List for $type {
            fn each(&self) -> impl ExactSizeIterator<Item = isize> + Clone {
                std::iter::once(sealed::Sealed::to_isize(*self))
            }
        }
    )*};
}

integers!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize);

/// Converts an argument that counts something.
///
/// # Errors
/// `InvalidArgument` for a negative number.
pub(crate) fn non_negative(op: &str, what: &str, n: impl Integer) -> Result<usize> {
    usize::try_from(n.to_isize()).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, format!("{op}: the {what} must not be negative, but is {n:?}"))
    })
}

/// Converts arguments that count something.
///
/// # Errors
/// `InvalidArgument` for a negative number.
pub(crate) fn non_negative_list(op: &str, what: &str, list: impl Integers) -> Result<Vec<usize>> {
    list.each().map(|n| non_negative(op, what, n)).collect()
}
