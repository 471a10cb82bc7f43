use std::path::Path;

use stridemap::{DType, Result};

use super::foreign::ForeignFile;
use super::numpy::Reading;

/// How files of other formats are opened, otherwise than by [`ForeignFile::open`].
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
    /// Those of [`ForeignFile::open`].
    #[must_use]
    pub fn new() -> Self {
        ForeignOptions::default()
    }

    /// Turns the bytes of big-endian elements around while they are read. Otherwise such arrays are refused: storages are
    /// little-endian, and what is only looked at where it lies cannot be.
    #[must_use]
    pub fn byteswap(mut self, is_swapping: bool) -> Self {
        self.reading.is_swapping = is_swapping;
        self
    }

    /// What elements are that NumPy gives as bytes without a type, `V1` or `V2`: it has no names for the types of its
    /// package `ml_dtypes`. Only elements of as many bytes are taken for it.
    #[must_use]
    pub fn untyped(mut self, dtype: DType) -> Self {
        self.reading.untyped = Some(dtype);
        self
    }

    /// As [`ForeignFile::open`].
    ///
    /// # Errors
    /// Those of [`ForeignFile::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<ForeignFile> {
        ForeignFile::open_with(path.as_ref(), self.reading)
    }
}
