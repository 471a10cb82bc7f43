use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use stridemap_format::{DType, StorageKind as RecordKind, StorageRecord, TensorRecord};

use super::loader::{Loader, layout_of};
use crate::error::Result;
use crate::generation::{self, Generation};
use crate::layout::Layout;
use crate::tensor::Tensor;

/// One generation of a store: it never changes, whatever any process commits later.
///
/// While it lives, the files of its generation stay on disk. A snapshot isolates names, headers and sealed elements, and not
/// those of mutable and live storages, which are changed in place.
#[derive(Clone)]
pub struct Snapshot {
    pub(super) loader: Arc<Loader>,
    generation: Arc<Generation>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({:?}, generation {})", self.loader.history.paths.root(), self.generation())
    }
}

/// The header of a tensor, without its storage being opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The id of the storage it stands on.
    pub storage_id: u64,
    /// A name or none for each dimension, when the dimensions are named.
    pub dim_names: Option<Vec<Option<String>>>,
    layout: Layout,
}

impl TensorInfo {
    /// A header in a file of another format, whose storages have numbers of their own.
    ///
    /// ```
    /// use stridemap::{DType, Layout, TensorInfo};
    ///
    /// let info = TensorInfo::new("x".to_owned(), DType::F32, Layout::contiguous(&[3, 2])?, 1);
    /// assert_eq!((info.size(), info.nbytes(), info.storage_id), (&[3, 2][..], 24, 1));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn new(name: String, dtype: DType, layout: Layout, storage_id: u64) -> Self {
        TensorInfo { name, dtype, storage_id, dim_names: None, layout }
    }

    pub(super) fn of_record(name: String, record: &TensorRecord) -> Result<Self> {
        let layout = layout_of(record)?;
        let dim_names = record.dim_names.clone();
        Ok(TensorInfo { name, dtype: record.dtype, storage_id: record.storage_id, dim_names, layout })
    }

    /// The size of each dimension, in elements.
    #[must_use]
    pub fn size(&self) -> &[usize] {
        self.layout.size()
    }

    /// [`size`](Self::size), by NumPy's and `ndarray`'s name.
    ///
    /// ```
    /// # use stridemap::{DType, StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.create_tensor("x", DType::F32, &[2, 3], StorageKind::Mutable)?;
    /// for info in store.snapshot().tensors("")? {
    ///     assert_eq!(info?.shape(), [2, 3]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.size()
    }

    /// The stride of each dimension, in elements.
    #[must_use]
    pub fn stride(&self) -> &[isize] {
        self.layout.stride()
    }

    /// Where in the storage the element of index 0, 0, ... stands, in elements.
    #[must_use]
    pub fn storage_offset(&self) -> usize {
        self.layout.offset()
    }

    /// The number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// The bytes that the elements would take if they stood alone.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.numel().saturating_mul(self.dtype.itemsize())
    }

    /// Whether the elements stand one after another in row-major order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }
}

/// How a storage's bytes may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageKind {
    /// Never.
    Sealed,
    /// In place, under an exclusive lock.
    Mutable,
    /// At any time, by atomics, all of one size.
    Live,
    /// The file is not the store's.
    External,
}

impl StorageKind {
    /// `sealed`, `mutable`, `live` or `external`.
    ///
    /// ```
    /// # use stridemap::StorageKind;
    /// assert_eq!(StorageKind::Mutable.name(), "mutable");
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StorageKind::Sealed => "sealed",
            StorageKind::Mutable => "mutable",
            StorageKind::Live => "live",
            StorageKind::External => "external",
        }
    }
}

/// What a store knows of one of its storages; or a run of bytes in a file of another format.
#[derive(Clone, Debug)]
pub struct StorageInfo {
    /// Its id, unique in the store for ever.
    pub id: u64,
    /// How its bytes may change.
    pub kind: StorageKind,
    /// Its length.
    pub size_bytes: u64,
    /// The file that it is in.
    pub file: PathBuf,
    /// Where in that file it begins.
    pub offset_bytes: u64,
    /// How many names stand on it.
    pub tensor_count: u64,
}

impl Snapshot {
    pub(super) fn new(loader: Arc<Loader>, generation: Arc<Generation>) -> Self {
        Snapshot { loader, generation }
    }

    /// The number of the commit that made this generation; 1 is the empty store.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let snapshot = store.snapshot();
    /// store.save("x", &1i32)?;
    /// assert_eq!((snapshot.generation(), store.generation()), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.number()
    }

    /// The tensor of a name: its header, and its storage opened. No element is read.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("weight", &[1f32, 2.])?;
    /// let snapshot = store.snapshot();
    /// store.remove("weight")?;
    /// assert_eq!(snapshot.load("weight")?.read::<f32>()?, [1., 2.]);
    /// let refused = snapshot.load("wieght").unwrap_err().to_string();
    /// assert!(refused.contains("did you mean \"weight\""));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NameNotFound`](crate::ErrorKind::NameNotFound), which says the nearest names;
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a record or a file that breaks a rule of the format;
    /// `ExternalRefused` for a storage outside the store, unless [allowed](crate::StoreOptions::external); `ExternalChanged`
    /// for one whose file is not any more the one that was adopted; `LimitExceeded` for sizes that this machine cannot count; `Io`.
    pub fn load(&self, name: &str) -> Result<Tensor> {
        self.loader.history.check_process()?;
        match self.generation.tensor(name)? {
            Some(record) => self.loader.tensor(&self.generation, name, &record),
            None => Err(generation::not_found("load", name, |prefix| self.generation.tensors(prefix))),
        }
    }

    /// The tensors whose name begins with `prefix`, by ascending name: one scan, where a [`load`](Self::load) of each
    /// would be a search of each.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("encoder.weight", &[1f32, 2.])?;
    /// store.save("head.weight", &[3f32])?;
    /// let snapshot = store.snapshot();
    /// for entry in snapshot.load_all("encoder.")? {
    ///     let (name, tensor) = entry?;
    ///     assert_eq!((name.as_str(), tensor.numel()), ("encoder.weight", 2));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading the metadata, here and for each item; for each item those of [`load`](Self::load).
    pub fn load_all<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<(String, Tensor)>> + 'a> {
        self.loader.history.check_process()?;
        let entries = self.generation.tensors(prefix)?;
        Ok(entries.map(|entry| {
            let (name, record) = entry?;
            let tensor = self.loader.tensor(&self.generation, &name, &record)?;
            Ok((name, tensor))
        }))
    }

    /// Whether there is a tensor of this name.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// assert!(store.snapshot().contains("x")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading the metadata.
    pub fn contains(&self, name: &str) -> Result<bool> {
        self.loader.history.check_process()?;
        Ok(self.generation.tensor(name)?.is_some())
    }

    /// All names, ascending.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// assert_eq!(store.snapshot().names()?, ["x"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading the metadata.
    pub fn names(&self) -> Result<Vec<String>> {
        self.loader.history.check_process()?;
        self.generation.tensors("")?.map(|entry| Ok(entry?.0)).collect()
    }

    /// The headers of the tensors whose name begins with `prefix`, by ascending name: one seek, then a scan that reads
    /// as it goes.
    ///
    /// ```
    /// # use stridemap::{DType, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("encoder.weight", &[1f32, 2.])?;
    /// store.save("head.weight", &[3f32])?;
    /// let snapshot = store.snapshot();
    /// for info in snapshot.tensors("encoder.")? {
    ///     let info = info?;
    ///     assert_eq!((info.name.as_str(), info.dtype, info.shape()), ("encoder.weight", DType::F32, &[2][..]));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading the metadata, here and for each item.
    pub fn tensors<'a>(&'a self, prefix: &'a str) -> Result<impl Iterator<Item = Result<TensorInfo>> + 'a> {
        self.loader.history.check_process()?;
        let entries = self.generation.tensors(prefix)?;
        Ok(entries.map(|entry| entry.and_then(|(name, record)| TensorInfo::of_record(name, &record))))
    }

    /// The other names whose tensors have a byte in common with the tensor of this one, ascending: those that an in-place
    /// change of it would change too. Goes through all headers; no element is read.
    ///
    /// Exact, with the exception that [`Tensor::overlaps`] has.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2.], [3., 4.]])?;
    /// let x = store.load("x")?;
    /// store.save_view("row", &x.select(0, 0)?)?;
    /// store.save_view("other row", &x.select(0, 1)?)?;
    /// assert_eq!(store.snapshot().overlapping("row")?, ["x"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NameNotFound`](crate::ErrorKind::NameNotFound); those of reading the metadata.
    pub fn overlapping(&self, name: &str) -> Result<Vec<String>> {
        let tensor = self.load(name)?;
        let mut names = Vec::new();
        for entry in self.generation.tensors("")? {
            let (other_name, other) = entry?;
            if other_name != name
                && Some(other.storage_id) == tensor.storage_id()
                && tensor.layout().overlaps(
                    tensor.dtype().itemsize(),
                    &layout_of(&other)?,
                    other.dtype.itemsize(),
                )
            {
                names.push(other_name);
            }
        }
        Ok(names)
    }

    /// The storages, by ascending id.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1f32, 2.])?;
    /// for storage in store.snapshot().storages() {
    ///     let storage = storage?;
    ///     assert_eq!((storage.kind, storage.size_bytes, storage.tensor_count), (StorageKind::Sealed, 8, 1));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading the metadata, for each item.
    pub fn storages(&self) -> impl Iterator<Item = Result<StorageInfo>> + '_ {
        let refused = self.loader.history.check_process().err();
        let storages = refused.is_none().then(|| self.generation.storages()).into_iter().flatten();
        let infos = storages.map(|entry| entry.map(|(id, record)| self.storage_info(id, record)));
        refused.map(Err).into_iter().chain(infos)
    }

    fn storage_info(&self, id: u64, record: StorageRecord) -> StorageInfo {
        let own_file = self.loader.history.paths.storage(id);
        let (kind, file, offset_bytes) = match record.kind {
            RecordKind::Sealed(_) => (StorageKind::Sealed, own_file, 0),
            RecordKind::Mutable => (StorageKind::Mutable, own_file, 0),
            RecordKind::Live { .. } => (StorageKind::Live, own_file, 0),
            RecordKind::External(external) => {
                (StorageKind::External, self.loader.externals.path(&external), external.offset_bytes)
            }
        };
        let StorageRecord { length_bytes: size_bytes, tensor_count, .. } = record;
        StorageInfo { id, kind, size_bytes, file, offset_bytes, tensor_count }
    }

    /// What was written on the store: text by key.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.set_attribute("epoch", "3")?;
    /// assert_eq!(store.snapshot().attributes()["epoch"], "3");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn attributes(&self) -> &BTreeMap<String, String> {
        &self.generation.manifest().attributes
    }

    pub(super) fn inner(&self) -> &Generation {
        &self.generation
    }
}
