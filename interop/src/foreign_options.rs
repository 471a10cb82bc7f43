//! How files in other formats are opened.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use stridemap::{DType, Result};

use super::contents::Contents;
use super::file::RawFile;
use super::file_format::not_tensors;
use super::foreign::ForeignFile;
use super::{gguf, numpy, safetensors, spool, torch, zip};

/// Options for opening files in other formats.
///
/// ```
/// use stridemap::DType;
/// use stridemap_interop::ForeignOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.npy");
/// # let tensor = stridemap::Tensor::zeros(DType::F8E4M3FN, &[2])?;
/// # stridemap_interop::npy::Export::new().write(&path, &tensor, |_| ())?;
/// let file = ForeignOptions::new().untyped(DType::F8E4M3FN).open(&path)?;
/// assert_eq!(file.tensors().next().unwrap().header.dtype(), DType::F8E4M3FN);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ForeignOptions {
    pub(super) untyped: Option<DType>,
    pub(super) is_skipping_unreadable: bool,
}

impl ForeignOptions {
    /// Returns the options of [`ForeignFile::open`].
    #[must_use]
    pub fn new() -> Self {
        ForeignOptions::default()
    }

    /// Sets the type of elements that NumPy wrote as untyped bytes, such as `V1` or `V2`. NumPy writes most types of
    /// the `ml_dtypes` package this way. The type applies only to elements of its size.
    #[must_use]
    pub fn untyped(mut self, dtype: DType) -> Self {
        self.untyped = Some(dtype);
        self
    }

    /// Leaves out tensors and values that cannot be read, instead of refusing the file. [`ForeignFile::skipped`] returns
    /// their names and the reasons.
    ///
    /// This applies to members of a `.npz` file, fields of a structured array, tensors and metadata of a `.safetensors`
    /// or `.gguf` file, and values of a checkpoint. An object of an unknown class is left out, but tensors and plain values in its
    /// items and attributes are read. A file whose structure is damaged is still refused. Elements are not read when a
    /// file is opened, so damage to them is found later, and is still an error.
    ///
    /// ```
    /// use stridemap_interop::ForeignOptions;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.safetensors");
    /// let header = r#"{"good":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
    ///     "six_bits":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[1,4]}}"#;
    /// let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat();
    /// std::fs::write(&path, bytes)?;
    ///
    /// let file = ForeignOptions::new().skip_unreadable(true).open(&path)?;
    /// assert_eq!(file.tensors().map(|tensor| tensor.name).collect::<Vec<_>>(), ["good"]);
    /// assert_eq!(file.skipped()[0].name, "six_bits");
    /// assert!(file.skipped()[0].reason.to_string().contains("stridemap cannot hold"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn skip_unreadable(mut self, is_skipping: bool) -> Self {
        self.is_skipping_unreadable = is_skipping;
        self
    }

    /// Opens a file like [`ForeignFile::open`], but with these options.
    ///
    /// # Errors
    /// Those of [`ForeignFile::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<ForeignFile> {
        self.open_raw(RawFile::open(path.as_ref())?, true)
    }

    /// Opens a file in another format from a [`File`] that is already open, such as a temporary copy of the input from
    /// a pipe. The file is read by position, from its start. Error messages name the file as `path`, and a tensor
    /// without a name is named after `path`.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::{ForeignOptions, npy};
    /// let mut file = tempfile::tempfile()?;
    /// npy::Export::new().write_to(&mut file, &Tensor::from_vec(vec![1u8, 2], &[2])?, |_| ())?;
    /// let file = ForeignOptions::new().open_file(file, "stdin")?;
    /// assert_eq!(file.load("stdin")?.read::<u8>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ForeignFile::open`]; [`ErrorKind::BadFile`](stridemap::ErrorKind::BadFile) for the index of a sharded model, which refers to other
    /// files.
    pub fn open_file(&self, file: File, path: impl AsRef<Path>) -> Result<ForeignFile> {
        self.open_raw(RawFile::from_file(file, path.as_ref())?, false)
    }

    /// Reads a file from a reader, such as a pipe, and opens it. The bytes are copied into `copy`, an empty file. Errors
    /// name the file as `path`.
    ///
    /// The first bytes are checked before others are read. A `.safetensors` or `.npy` file states its length in its
    /// header, and at most one byte more is read.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::{ForeignOptions, npy};
    /// let mut bytes = Vec::new();
    /// npy::Export::new().write_to(&mut bytes, &Tensor::from_vec(vec![1u8, 2], &[2])?, |_| ())?;
    /// let file = ForeignOptions::new().open_reader(bytes.as_slice(), tempfile::tempfile()?, "stdin")?;
    /// assert_eq!(file.load("stdin")?.read::<u8>()?, [1, 2]);
    /// let endless = std::io::repeat(b'y');
    /// assert!(ForeignOptions::new().open_reader(endless, tempfile::tempfile()?, "stdin").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`open_file`](Self::open_file), and [`ErrorKind::Io`](stridemap::ErrorKind::Io) if the reader or the copy fails.
    pub fn open_reader(
        &self,
        mut reader: impl Read,
        mut copy: File,
        path: impl AsRef<Path>,
    ) -> Result<ForeignFile> {
        spool::copy(*self, &mut reader, &mut copy, path.as_ref())?;
        self.open_file(copy, path)
    }

    /// Opens a file. If it is not at its path, the path serves only as a name, and no shards are opened.
    fn open_raw(&self, file: RawFile, is_at_path: bool) -> Result<ForeignFile> {
        let file = Arc::new(file);
        let contents = match file.magic()?.as_slice() {
            magic if safetensors::is_index(magic) && is_at_path => safetensors::read_index(&file, *self)?,
            magic if safetensors::is_index(magic) => {
                return Err(
                    file.bad("the index of a sharded model; open it by its path, which locates the shards")
                );
            }
            _ => self.read(&file, safetensors::MAX_HEADER_BYTES)?,
        };
        let mut contents = contents;
        contents.fit_attributes(&file, *self)?;
        let contents = contents.checked(&file)?;
        Ok(ForeignFile::new(file, contents))
    }

    /// Reads the headers of a file that is not an index. A safetensors header must have at most `header_bytes`.
    pub(super) fn read(&self, file: &Arc<RawFile>, header_bytes: u64) -> Result<Contents> {
        match file.magic()?.as_slice() {
            // Safetensors first: its length field can look like the start of any other format, but no other format
            // continues with a brace.
            magic if safetensors::is_file(magic, file.length_bytes()) => {
                safetensors::read(file, header_bytes, *self)
            }
            magic if magic.starts_with(gguf::MAGIC) => gguf::read(file, *self),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => numpy::npy::read(file, *self),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => {
                let members = zip::members(file)?;
                if torch::is_archive(&members) {
                    torch::read_archive(file, members, *self)
                } else {
                    numpy::npz::read(file, members, *self)
                }
            }
            magic if torch::is_pickle(magic) => torch::read_legacy(file, *self),
            magic => match not_tensors(magic) {
                Some(what) => Err(file.bad(what)),
                None if torch::is_tar(file)? => Err(torch::tar_error(file)),
                None => safetensors::read(file, header_bytes, *self),
            },
        }
    }
}
