//! Files in other formats, opened and read in place.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use stridemap::import::ExternalFile;
use stridemap::{Error, ErrorKind, Result, StorageInfo, StorageKind, TensorInfo};

use super::contents::{Contents, ForeignTensor, Skipped};
use super::file::RawFile;
use super::file_format::FileFormat;
use super::foreign_options::ForeignOptions;
use super::gguf;

fn info_of(tensor: &ForeignTensor) -> TensorInfo {
    let storage_id = tensor.storage as u64 + 1;
    TensorInfo::new(tensor.name.clone(), tensor.header.clone(), storage_id)
}

/// An open file in another format. Its headers have been checked against the file. Elements are read on demand.
///
/// The format is detected from the content, not from the name. [`import_into`](Self::import_into) copies the elements
/// into a store; [`adopt_into`](Self::adopt_into) makes them part of a store without copying.
///
/// ```
/// use stridemap_interop::{ForeignFile, safetensors};
/// use stridemap::{Store, Tensor};
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
/// let path = dir.join("points.safetensors");
/// let tensors = [("points_t".to_owned(), points.t()?)];
/// safetensors::Export::new().write(&path, &tensors, |_| ())?;
///
/// let store = Store::create(dir.join("points.smap"))?;
/// let mut txn = store.begin()?;
/// ForeignFile::open(&path)?.import_into(&mut txn, "imported.", |_| ())?;
/// txn.commit()?;
/// assert_eq!(store.load("imported.points_t")?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ForeignFile {
    pub(super) file: Arc<RawFile>,
    pub(super) contents: Contents,
    /// The indices of the tensors, in ascending order of name. Sorted on first use.
    by_name: OnceLock<Vec<usize>>,
    /// The storages converted into temporary files, for as long as tensors refer to them.
    pub(super) converted: Mutex<HashMap<usize, Weak<ExternalFile>>>,
}

impl ForeignFile {
    /// Returns a file whose headers were checked.
    pub(super) fn new(file: Arc<RawFile>, contents: Contents) -> Self {
        ForeignFile { file, contents, by_name: OnceLock::new(), converted: Mutex::default() }
    }

    /// Opens a file and checks that its header matches its length. No element is read.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`](stridemap::ErrorKind::BadFile) if the file cannot be read, for example because of an
    /// unknown format, a truncated file, a duplicate name, or elements of a type that stridemap does not have;
    /// [`ErrorKind::Io`](stridemap::ErrorKind::Io).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        ForeignOptions::new().open(path)
    }

    /// Returns the detected format.
    #[must_use]
    pub fn format(&self) -> FileFormat {
        self.contents.format
    }

    /// Returns the path that the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Iterates over the headers of the tensors, in the order of the file. Storages are numbered from 1.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        self.contents.tensors.iter().map(info_of)
    }

    /// Iterates over the headers of the tensors whose names begin with `prefix`, in ascending order of name.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::{ForeignFile, safetensors};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.safetensors");
    /// let x = Tensor::from_vec(vec![1u8], &[1])?;
    /// let tensors = ["b.2", "a", "b.1"].map(|name| (name.to_owned(), x.clone()));
    /// safetensors::Export::new().write(&path, &tensors, |_| ())?;
    /// let file = ForeignFile::open(&path)?;
    /// let names: Vec<_> = file.tensors_with("b.").map(|tensor| tensor.name).collect();
    /// assert_eq!(names, ["b.1", "b.2"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tensors_with(&self, prefix: &str) -> impl Iterator<Item = TensorInfo> {
        let tensors = self.by_name();
        let first = tensors.partition_point(|&index| self.name(index) < prefix);
        let from_first = tensors.get(first..).unwrap_or_default();
        let end = from_first.partition_point(|&index| self.name(index).starts_with(prefix));
        let selected = from_first.get(..end).unwrap_or_default();
        selected.iter().filter_map(|&index| self.contents.tensors.get(index)).map(info_of)
    }

    /// Returns whether a tensor has this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn by_name(&self) -> &[usize] {
        self.by_name.get_or_init(|| {
            let mut tensors: Vec<usize> = (0..self.contents.tensors.len()).collect();
            tensors.sort_unstable_by(|&a, &b| self.name(a).cmp(self.name(b)));
            tensors
        })
    }

    fn name(&self, index: usize) -> &str {
        self.contents.tensors.get(index).map_or("", |tensor| &tensor.name)
    }

    fn find(&self, name: &str) -> Option<&ForeignTensor> {
        let tensors = self.by_name();
        let place = tensors.binary_search_by(|&index| self.name(index).cmp(name)).ok()?;
        self.contents.tensors.get(*tensors.get(place)?)
    }

    /// Iterates over the storages in the file, in ascending order of their numbers.
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

    /// Returns a tensor by name. If there is none, the error suggests the nearest names.
    pub(super) fn found(&self, verb: &str, name: &str) -> Result<&ForeignTensor> {
        self.find(name).ok_or_else(|| {
            let path = self.path().display();
            let names = self.by_name().iter().map(|&index| self.name(index).to_owned());
            Error::name_not_found(verb, name, names).context(path)
        })
    }

    /// Renames the tensors with `new_name`, and leaves out those for which it returns `None`.
    ///
    /// ```
    /// use stridemap::{Store, Tensor};
    /// use stridemap_interop::{ForeignFile, safetensors};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("m.safetensors");
    /// let x = Tensor::from_vec(vec![1f32], &[1])?;
    /// let tensors = [("old".to_owned(), x.clone()), ("useless".to_owned(), x)];
    /// safetensors::Export::new().write(&path, &tensors, |_| ())?;
    ///
    /// let mut file = ForeignFile::open(&path)?;
    /// file.rename(|name| (name != "useless").then(|| format!("{name}.new")))?;
    /// assert_eq!(file.tensors().map(|tensor| tensor.name).collect::<Vec<_>>(), ["old.new"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NameExists`] if two tensors would have the same name. Nothing is renamed then.
    pub fn rename(&mut self, mut new_name: impl FnMut(&str) -> Option<String>) -> Result<()> {
        let mut names = HashSet::new();
        let mut tensors = Vec::new();
        for tensor in &self.contents.tensors {
            let Some(name) = new_name(&tensor.name) else { continue };
            if !names.insert(name.clone()) {
                let message =
                    format!("rename {}: two tensors would be named {name:?}", self.path().display());
                return Err(Error::new(ErrorKind::NameExists, message));
            }
            tensors.push(ForeignTensor { name, ..tensor.clone() });
        }
        let used: HashSet<usize> = tensors.iter().map(|tensor| tensor.storage).collect();
        for (index, storage) in self.contents.storages.iter_mut().enumerate() {
            storage.is_imported_whole &= used.contains(&index); // otherwise an import would copy it
        }
        self.contents.tensors = tensors;
        let too_long = std::mem::take(&mut self.contents.too_long);
        self.contents.too_long = too_long.iter().filter_map(|name| new_name(name)).collect();
        self.by_name = OnceLock::new();
        Ok(())
    }

    /// Returns the text in the file besides its tensors, by key. Other plain values, such as the numbers in a
    /// checkpoint, are text here.
    #[must_use]
    pub fn attributes(&self) -> &BTreeMap<String, String> {
        &self.contents.attributes
    }

    /// Returns the attributes of a tensor, by key. Only tensors of a GGUF file have one, [`TYPE_KEY`]: those of a type that no
    /// dtype has. An import saves it together with the tensor.
    ///
    /// [`TYPE_KEY`]: crate::gguf::TYPE_KEY
    #[must_use]
    pub fn attributes_of(&self, name: &str) -> BTreeMap<String, String> {
        let gguf_type = self.find(name).and_then(|tensor| tensor.gguf_type);
        gguf_type.into_iter().map(|name| (gguf::TYPE_KEY.to_owned(), name.to_owned())).collect()
    }

    /// Returns the names of values that are too large for attributes. The attributes of a store take at most 1 MiB. Each of
    /// these values is a tensor of bytes instead: text in UTF-8, a list or dict of a checkpoint as JSON, and an array of a
    /// GGUF file as it is in the file.
    #[must_use]
    pub fn long_attributes(&self) -> &[String] {
        &self.contents.too_long
    }

    /// Returns the tensors and values that were left out, in the order of the file, and why. The list is empty unless
    /// [`ForeignOptions::skip_unreadable`] is set.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.contents.skipped
    }

    /// Returns the number of bytes of elements that an import reads.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.contents.size_bytes()
    }
}
