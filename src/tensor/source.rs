//! Sources: values that can be saved.

use stridemap_format::DType;

use super::Element;
use super::element::sealed::Sealed;
use crate::error::Result;
use crate::storage::ReadLock;

/// Elements that can be saved: a [`Tensor`](crate::Tensor), a slice, array or `Vec` of elements, a single element, or
/// an `ndarray` array.
///
/// A `Vec` or slice is a vector, an array of arrays is a matrix, and so on. A single element has no dimensions.
///
/// ```
/// use stridemap::Store;
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("x.smap"))?;
/// store.save("bias", &vec![0.5f32, -0.5])?;
/// store.save("points", &[[1f32, 4.], [2., 1.], [3., 5.]])?;
/// store.save("rate", &0.1f32)?;
/// assert_eq!(store.load("points")?.size(), [3, 2]);
/// assert_eq!(store.load("rate")?.item::<f32>()?, 0.1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Your own types can be sources. The library asks for the elements in row-major order, a piece at a time, and writes
/// them directly to the new storage. To report a failure, a source [creates](crate::Error::new) an
/// [`Error`](crate::Error).
///
/// ```
/// use stridemap::{DType, Error, ErrorKind, Result, Source, Store};
///
/// /// Squares, which are never in memory together.
/// struct Squares(u32);
///
/// impl Source for Squares {
///     fn dtype(&self) -> DType {
///         DType::U64
///     }
///
///     fn size(&self) -> Vec<usize> {
///         vec![self.0 as usize]
///     }
///
///     fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
///         if self.0 > 1000 {
///             return Err(Error::new(ErrorKind::OutOfRange, format!("{} squares are too many", self.0)));
///         }
///         (0..u64::from(self.0)).try_for_each(|i| sink(&(i * i).to_le_bytes()))
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("x.smap"))?;
/// store.save("squares", &Squares(4))?;
/// assert_eq!(store.load("squares")?.read::<u64>()?, [0, 1, 4, 9]);
/// let refused = store.save("more", &Squares(2000)).unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::OutOfRange);
/// assert_eq!(refused.to_string(), "save \"more\": 2000 squares are too many");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Source {
    /// Returns the type of the elements.
    fn dtype(&self) -> DType;

    /// Returns the size of each dimension.
    fn size(&self) -> Vec<usize>;

    /// Returns the name of each dimension, if it has one, or an empty list for no names.
    ///
    /// ```
    /// # use stridemap::{Source, Tensor};
    /// let x = Tensor::from_vec(vec![1f32, 2.], &[2])?.refine_names(&["time"])?;
    /// assert_eq!(Source::names(&x), [Some("time")]);
    /// assert_eq!(Source::names(&[1f32, 2.]), []);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    fn names(&self) -> Vec<Option<&str>> {
        Vec::new()
    }

    /// Passes all elements to `sink` as little-endian bytes in row-major order, in pieces of any length.
    ///
    /// # Errors
    /// Errors from reading the elements, and those of `sink`.
    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// Takes the lock under which `write_to` reads, if there is one, so that the caller can take it before another lock.
    #[doc(hidden)]
    fn lock_to_read(&self) -> Result<Option<ReadLock>> {
        Ok(None)
    }
}

/// An element, or an array of nested values.
pub(crate) trait Nested: Sized {
    type Element: Element;

    /// Returns the sizes of the dimensions of one value.
    fn size() -> Vec<usize>;

    /// Returns the elements of several values, in row-major order.
    fn elements(list: &[Self]) -> &[Self::Element];
}

impl<T: Element> Nested for T {
    type Element = T;

    fn size() -> Vec<usize> {
        Vec::new()
    }

    fn elements(list: &[T]) -> &[T] {
        list
    }
}

impl<N: Nested, const LEN: usize> Nested for [N; LEN] {
    type Element = N::Element;

    fn size() -> Vec<usize> {
        [vec![LEN], N::size()].concat()
    }

    fn elements(list: &[Self]) -> &[N::Element] {
        N::elements(list.as_flattened())
    }
}

impl<N: Nested> Source for [N] {
    fn dtype(&self) -> DType {
        N::Element::DTYPE
    }

    fn size(&self) -> Vec<usize> {
        let mut size = N::size();
        size.insert(0, self.len());
        size
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        sink(N::Element::as_bytes(N::elements(self)))
    }
}

macro_rules! as_slices {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<$($generics)*> Source for $type {
            fn dtype(&self) -> DType {
                self.as_slice().dtype()
            }

            fn size(&self) -> Vec<usize> {
                self.as_slice().size()
            }

            fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
                self.as_slice().write_to(sink)
            }
        }
    )*};
}

as_slices! { [N: Nested] Vec<N>; [N: Nested, const LEN: usize] [N; LEN]; }

impl<T: Element> Source for T {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn size(&self) -> Vec<usize> {
        Vec::new()
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        sink(T::as_bytes(std::slice::from_ref(self)))
    }
}
