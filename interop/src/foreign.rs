use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use stridemap::{Error, ExternalFile, Result, StorageInfo, StorageKind, Tensor, TensorInfo};

use super::contents::{Contents, ForeignStorage, ForeignTensor};
use super::file::RawFile;
use super::{ForeignOptions, numpy, safetensors, torch, zip};

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// `.safetensors`: a JSON header, then elements.
    Safetensors,
    /// `.safetensors.index.json`: which tensor is in which of several `.safetensors` files beside it, which are opened as
    /// one.
    SafetensorsIndex,
    /// `.npy`: one array of NumPy.
    Npy,
    /// `.npz`: a zip file of arrays of NumPy.
    Npz,
    /// `.pt`, `.pth`: a checkpoint of PyTorch.
    PyTorch,
}

impl FileFormat {
    /// `safetensors`, `safetensors-index`, `npy`, `npz` or `pytorch`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileFormat::Safetensors => "safetensors",
            FileFormat::SafetensorsIndex => "safetensors-index",
            FileFormat::Npy => "npy",
            FileFormat::Npz => "npz",
            FileFormat::PyTorch => "pytorch",
        }
    }
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An open file of another format. Its headers are checked against the file; elements are read when they are needed.
///
/// The format is detected by the content, not by the name. [`import_into`](Self::import_into) copies the elements into a
/// store; [`adopt_into`](Self::adopt_into) makes them part of one where they are.
///
/// ```
/// use std::collections::{BTreeMap, HashMap};
/// use stridemap_interop::{ForeignFile, safetensors};
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
/// ForeignFile::open(&path)?.import_into(&mut txn, "imported.", &mut |_| ())?;
/// txn.commit()?;
/// assert_eq!(store.load("imported.points_t")?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ForeignFile {
    pub(super) file: Arc<RawFile>,
    pub(super) contents: Contents,
    /// The index of each name; made when it is first asked for.
    by_name: OnceLock<BTreeMap<String, usize>>,
    /// The storages that were converted into temporary files, while tensors refer to them.
    converted: Mutex<HashMap<usize, Weak<ExternalFile>>>,
}

impl ForeignFile {
    /// Opens a file and checks its header against it. No element is read.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`](stridemap::ErrorKind::BadFile) for a file of an unknown format, a truncated one, a name that
    /// appears twice, or elements of a type that stridemap does not have; [`ErrorKind::Io`](stridemap::ErrorKind::Io).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        ForeignOptions::new().open(path)
    }

    pub(super) fn open_with(path: &Path, reading: numpy::Reading) -> Result<Self> {
        let file = Arc::new(RawFile::open(path)?);
        let contents = match file.magic()?.as_slice() {
            // First: a length can begin as any of the others do, and none of them goes on with a brace.
            magic if safetensors::is_file(magic, file.length_bytes()) => safetensors::read(&file)?,
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => numpy::npy::read(&file, reading)?,
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => {
                let members = zip::members(&file)?;
                if torch::is_archive(&members) {
                    torch::read_archive(&file, &members)?
                } else {
                    numpy::npz::read(&file, members, reading)?
                }
            }
            magic if torch::is_pickle(magic) => torch::read_legacy(&file)?,
            magic if safetensors::is_index(magic) => safetensors::read_index(&file)?,
            _ if torch::is_tar(&file)? => return Err(torch::refuse_tar(&file)),
            _ => safetensors::read(&file)?,
        };
        let contents = contents.checked(&file)?;
        Ok(ForeignFile { file, contents, by_name: OnceLock::new(), converted: Mutex::default() })
    }

    /// The format that was detected.
    #[must_use]
    pub fn format(&self) -> FileFormat {
        self.contents.format
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The headers of its tensors, in the order of the file. Storages are numbered from 1.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        self.contents.tensors.iter().map(|tensor| {
            let storage_id = tensor.storage as u64 + 1;
            TensorInfo::new(tensor.name.clone(), tensor.dtype, tensor.layout.clone(), storage_id)
        })
    }

    /// The runs of bytes that its tensors refer to, by ascending number.
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

    /// Returns a tensor whose storage is a range of the file. No element is read. Tensors on one storage share it.
    ///
    /// An array in a compressed member of a zip file, or one that is [byte-swapped](ForeignOptions::byteswap), is converted
    /// into a temporary file without a name, in the directory that `TMPDIR` names. The checksum of a member of a zip file is
    /// checked by that, and by an import, but not when elements are read from the file itself.
    ///
    /// # Errors
    /// [`ErrorKind::NameNotFound`](stridemap::ErrorKind::NameNotFound), which suggests the nearest names. When elements are
    /// converted, [`ErrorKind::BadFile`](stridemap::ErrorKind::BadFile) and [`ErrorKind::Io`](stridemap::ErrorKind::Io).
    /// Reading elements later is [`ErrorKind::ExternalChanged`](stridemap::ErrorKind::ExternalChanged) if the file was changed
    /// since it was opened.
    pub fn load(&self, name: &str) -> Result<Tensor> {
        let by_name = self.by_name.get_or_init(|| {
            let names = self.contents.tensors.iter().map(|tensor| tensor.name.clone());
            names.zip(0..).collect()
        });
        let tensor = by_name.get(name).and_then(|&index: &usize| self.contents.tensors.get(index));
        let tensor = tensor.ok_or_else(|| {
            let path = self.path().display();
            Error::name_not_found("load", name, by_name.keys().cloned()).context(path)
        })?;
        self.tensor(tensor).map_err(|e| e.context(format_args!("load {name:?}")))
    }

    fn tensor(&self, tensor: &ForeignTensor) -> Result<Tensor> {
        let &ForeignTensor { dtype, ref layout, storage: index, .. } = tensor;
        match self.contents.storages.get(index) {
            Some(storage) if !storage.is_range() => {
                let file = self.converted(index, storage)?;
                Tensor::from_file(&file, 0..storage.length_bytes, dtype, layout.clone())
            }
            Some(storage) => {
                Tensor::from_file(storage.file.external(), storage.bytes_range(), dtype, layout.clone())
            }
            None => Tensor::zeros(dtype, layout.size()),
        }
    }

    /// Converts a storage once, so that tensors share it.
    fn converted(&self, index: usize, storage: &ForeignStorage) -> Result<Arc<ExternalFile>> {
        let mut converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = converted.get(&index).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = Arc::new(storage.convert()?);
        converted.insert(index, Arc::downgrade(&file));
        Ok(file)
    }

    /// The text that the file holds besides its tensors, by key.
    #[must_use]
    pub fn attributes(&self) -> &BTreeMap<String, String> {
        &self.contents.attributes
    }

    /// How many bytes of elements an import reads.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.contents.size_bytes()
    }
}
