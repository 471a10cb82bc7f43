use std::path::Path;

use stridemap::{DType, Result};

use super::foreign::ForeignFile;
use super::numpy::Reading;

/// Options for opening files in other formats.
///
/// ```
/// use stridemap::DType;
/// use stridemap_interop::ForeignOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.npy");
/// # let tensor = stridemap::Tensor::zeros(DType::F8E4M3FN, &[2])?;
/// # stridemap_interop::npy::write(&path, &tensor, stridemap::OnExisting::Refuse, &mut |_| ())?;
/// let file = ForeignOptions::new().untyped(DType::F8E4M3FN).open(&path)?;
/// assert_eq!(file.tensors().next().unwrap().dtype, DType::F8E4M3FN);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ForeignOptions {
    reading: Reading,
}

impl ForeignOptions {
    /// Returns the options of [`ForeignFile::open`].
    #[must_use]
    pub fn new() -> Self {
        ForeignOptions::default()
    }

    /// Converts big-endian arrays to little-endian when they are read. By default they are refused, because storages
    /// are little-endian.
    #[must_use]
    pub fn byteswap(mut self, is_swapping: bool) -> Self {
        self.reading.is_swapping = is_swapping;
        self
    }

    /// Sets the type of elements that NumPy wrote as untyped bytes, `V1` or `V2`, as it does for the types of the
    /// `ml_dtypes` package. It applies only to elements of the same size.
    #[must_use]
    pub fn untyped(mut self, dtype: DType) -> Self {
        self.reading.untyped = Some(dtype);
        self
    }

    /// Opens a file like [`ForeignFile::open`].
    ///
    /// # Errors
    /// Those of [`ForeignFile::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<ForeignFile> {
        ForeignFile::open_with(path.as_ref(), self.reading)
    }
}
