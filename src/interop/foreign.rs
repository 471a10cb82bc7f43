use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::contents::Contents;
use super::file::RawFile;
use super::{numpy, safetensors};
use crate::error::Result;
use crate::store::{StorageInfo, StorageKind, TensorInfo};

/// The formats of files that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// `.safetensors`: a JSON header, then elements.
    Safetensors,
    /// `.npy`: one array of NumPy.
    Npy,
}

impl FileFormat {
    /// `safetensors` or `npy`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileFormat::Safetensors => "safetensors",
            FileFormat::Npy => "npy",
        }
    }
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file of another format, open: its headers are known and checked against the file; elements are read when they are
/// asked for.
///
/// The format is told by the content, not by the name. The file is no part of a store until
/// [`Transaction::import`](crate::Transaction::import) copies its elements into one.
///
/// ```
/// use std::collections::BTreeMap;
/// use stridemap::interop::{ForeignFile, safetensors};
/// use stridemap::{OnExisting, Store, Tensor};
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
/// let path = dir.join("points.safetensors");
/// let tensors = [("points_t".to_owned(), points.t()?)];
/// safetensors::write(&path, &tensors, &BTreeMap::new(), OnExisting::Refuse, &mut |_| ())?;
///
/// let store = Store::create(dir.join("points.smap"))?;
/// let mut txn = store.begin()?;
/// txn.import(&ForeignFile::open(&path)?, "imported.", &mut |_| ())?;
/// txn.commit()?;
/// assert_eq!(store.load("imported.points_t")?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ForeignFile {
    pub(super) file: Arc<RawFile>,
    pub(super) contents: Contents,
}

impl ForeignFile {
    /// Opens a file and checks its header against it. No element is read.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`](crate::ErrorKind::BadFile) for what is of no known format, or not whole, has a name twice, or
    /// has elements of a type that has no counterpart here; [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = Arc::new(RawFile::open(path.as_ref())?);
        let contents = match file.magic()?.as_slice() {
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => numpy::npy::read(&file)?,
            _ => safetensors::read(&file)?,
        };
        let contents = contents.checked(&file)?;
        Ok(ForeignFile { file, contents })
    }

    /// What the file was told to be.
    #[must_use]
    pub fn format(&self) -> FileFormat {
        self.contents.format
    }

    /// Its path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The headers of its tensors, in the order of the file. Storages are numbered from 1 on.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        self.contents.tensors.iter().map(|tensor| {
            let storage_id = tensor.storage as u64 + 1;
            TensorInfo::of(tensor.name.clone(), tensor.dtype, tensor.layout.clone(), storage_id)
        })
    }

    /// The runs of bytes that its tensors stand on, by ascending number.
    pub fn storages(&self) -> impl Iterator<Item = StorageInfo> {
        let mut counts = vec![0u64; self.contents.storages.len()];
        for tensor in &self.contents.tensors {
            counts.get_mut(tensor.storage).into_iter().for_each(|count| *count += 1);
        }
        (1..).zip(&self.contents.storages).zip(counts).map(|((id, storage), tensor_count)| StorageInfo {
            id,
            kind: StorageKind::External,
            size_bytes: storage.length_bytes,
            file: storage.file.path().to_path_buf(),
            offset_bytes: storage.offset_bytes,
            tensor_count,
        })
    }

    /// The text that the file holds beside its tensors, by key.
    #[must_use]
    pub fn attributes(&self) -> &BTreeMap<String, String> {
        &self.contents.attributes
    }

    /// The bytes of elements that an import reads.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.contents.size_bytes()
    }
}
