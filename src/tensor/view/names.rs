use crate::error::Result;
use crate::tensor::Tensor;

/// Names of dimensions: they are saved with a tensor, stay with a dimension through every view, and stand wherever an
/// axis may. A dimension that is joined or parted loses its name; `as_strided` keeps none. A [`view`](Tensor::view) under
/// another size is told from the sizes alone: a dimension keeps its name if as many elements lie before it, and in it;
/// without elements none does.
///
/// A name is an identifier: ASCII letters, digits and `_`. In lists of names `"..."` stands for the dimensions that are
/// not listed, and `None` for no name.
impl Tensor {
    /// The name of each dimension, if it has one.
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
        self.layout().names().map(Option::as_deref).collect()
    }

    /// Gives names to dimensions that have none. A dimension that has one keeps it, and is listed by it.
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
    /// [`NameMismatch`](crate::ErrorKind::NameMismatch) when a name would change;
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a name that is no identifier or stands twice, and too
    /// many or too few names.
    pub fn refine_names<'a, N: Into<Option<&'a str>> + Copy>(&self, names: &[N]) -> Result<Tensor> {
        self.viewed(self.layout().refine_names(&listed(names)))
    }

    /// Gives every dimension the name that is listed for it, or none.
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
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), as [`refine_names`](Self::refine_names).
    pub fn rename<'a, N: Into<Option<&'a str>> + Copy>(&self, names: &[N]) -> Result<Tensor> {
        self.viewed(self.layout().rename(&listed(names)))
    }

    /// Changes or drops single names: pairs of the old name and the new one.
    ///
    /// ```
    /// # use stridemap::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, &[2, 3])?.refine_names(&["batch", "channel"])?;
    /// let renamed = x.rename_dims(&[("channel", "C")])?;
    /// assert_eq!(renamed.names(), [Some("batch"), Some("C")]);
    /// assert_eq!((renamed.size(), renamed.stride()), (x.size(), x.stride()));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for an old name that is not there;
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument).
    pub fn rename_dims<'a, N: Into<Option<&'a str>> + Copy>(&self, pairs: &[(&'a str, N)]) -> Result<Tensor> {
        let pairs: Vec<(&str, Option<&str>)> = pairs.iter().map(|&(from, to)| (from, to.into())).collect();
        self.viewed(self.layout().rename_dims(&pairs))
    }

    /// Puts dimensions in the order of these names. A name that no dimension has becomes a dimension of size 1.
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
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when a dimension is not listed, and there is no `"..."`;
    /// for a name that is no identifier, or stands twice.
    pub fn align_to<'a, N: Into<Option<&'a str>> + Copy>(&self, names: &[N]) -> Result<Tensor> {
        self.viewed(self.layout().align_to(&listed(names)))
    }

    /// [`align_to`](Self::align_to) the names of another tensor.
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
    /// Those of [`align_to`](Self::align_to).
    pub fn align_as(&self, other: &Tensor) -> Result<Tensor> {
        self.viewed(self.layout().align_as(other.layout()))
    }
}

fn listed<'a, N: Into<Option<&'a str>> + Copy>(names: &[N]) -> Vec<Option<&'a str>> {
    names.iter().map(|&name| name.into()).collect()
}
