//! Names of dimensions.

use crate::error::Result;
use crate::layout;
use crate::tensor::Tensor;

/// Names of dimensions. They are saved with a tensor, follow their dimensions through every view, and are accepted
/// wherever an axis is. A dimension that is joined or split loses its name, and `as_strided` drops all names. A
/// [`view`](Tensor::view) with a different size knows dimensions only by their sizes: a dimension keeps its name if its
/// own size and the product of the sizes before it stay the same. Such a view of an empty tensor has no names.
///
/// A name is an identifier: ASCII letters, digits and `_`. In a list of names, `"..."` means all dimensions that are
/// not listed, and `None` means no name.
impl Tensor {
    /// Returns the name of each dimension, if it has one.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[3, 2])?;
    /// assert_eq!(x.names(), [None, None]);
    /// assert_eq!(x.refine_names(&["row", "..."])?.t()?.names(), [None, Some("row")]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn names(&self) -> Vec<Option<&str>> {
        layout::names_of(self.header()).map(Option::as_deref).collect()
    }

    /// Names unnamed dimensions. A dimension that already has a name must be listed under it.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3, 4])?;
    /// assert_eq!(x.stride(), [12, 4, 1]);
    /// let x = x.refine_names(&["...", "height", "width"])?;
    /// assert_eq!(x.names(), [None, Some("height"), Some("width")]);
    /// assert_eq!((x.size(), x.stride()), (&[2, 3, 4][..], &[12, 4, 1][..]));
    /// assert_eq!(x.select("height", 1)?.names(), [None, Some("width")]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if a name would change, for a name that is not an
    /// identifier or is listed twice, and for too many or too few names.
    pub fn refine_names<'a, N: Into<Option<&'a str>> + Copy>(&self, names: &[N]) -> Result<Tensor> {
        self.viewed(layout::refine_names(self.header(), &listed(names)))
    }

    /// Replaces the names of all dimensions. `None` removes a name.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?.refine_names(&["batch", "channel"])?;
    /// let renamed = x.rename(&[Some("N"), Some("...")])?;
    /// assert_eq!(renamed.names(), [Some("N"), Some("channel")]);
    /// assert_eq!((renamed.size(), renamed.stride()), (x.size(), x.stride()));
    /// assert_eq!(x.rename(&[None, None])?.names(), [None, None]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), as for [`refine_names`](Self::refine_names).
    pub fn rename<'a, N: Into<Option<&'a str>> + Copy>(&self, names: &[N]) -> Result<Tensor> {
        self.viewed(layout::rename(self.header(), &listed(names)))
    }

    /// Reorders dimensions to match a list of names. For a name that no dimension has, a dimension of size 1 is
    /// added.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?.refine_names(&["row", "column"])?;
    /// assert_eq!(x.stride(), [3, 1]);
    /// let view = x.align_to(&["column", "depth", "..."])?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 1, 2][..], &[1, 1, 3][..]));
    /// assert_eq!(view.names(), [Some("column"), Some("depth"), Some("row")]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if a dimension is not listed and there is no `"..."`,
    /// for a name that is not an identifier or is listed twice, or for a `None`.
    pub fn align_to<'a, N: Into<Option<&'a str>> + Copy>(&self, names: &[N]) -> Result<Tensor> {
        self.viewed(layout::align_to(self.header(), &listed(names)))
    }

    /// Reorders dimensions to match the names of another tensor, as [`align_to`](Self::align_to) does.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let bias = Tensor::zeros(DType::F32, &[3])?.refine_names(&["channel"])?;
    /// assert_eq!(bias.stride(), [1]);
    /// let image = Tensor::zeros(DType::F32, &[3, 8, 8])?.refine_names(&["channel", "height", "width"])?;
    /// let view = bias.align_as(&image)?;
    /// assert_eq!((view.size(), view.stride()), (&[3, 1, 1][..], &[1, 1, 1][..]));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), as for [`align_to`](Self::align_to).
    pub fn align_as(&self, other: &Tensor) -> Result<Tensor> {
        self.viewed(layout::align_as(self.header(), other.header()))
    }
}

fn listed<'a, N: Into<Option<&'a str>> + Copy>(names: &[N]) -> Vec<Option<&'a str>> {
    names.iter().map(|&name| name.into()).collect()
}
