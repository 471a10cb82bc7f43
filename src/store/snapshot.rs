//! Snapshots, and the headers that they list.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use stridemap_format::{Header, RecordKind, StorageRecord, TensorRecord};

use super::loader::Loader;
use super::replica::TaggedGarbage;
use crate::error::{FormatContext, Result};
use crate::generation::Generation;
use crate::layout::{MAX_STEPS_TOGETHER, footprint_bytes, for_each_range, overlaps, overlaps_within, repack};
use crate::storage::StorageKind;
use crate::tensor::Tensor;

/// One generation of a store. It never changes, whatever any process commits later.
///
/// While the snapshot lives, the files of its generation stay on disk. A snapshot isolates names, headers and sealed
/// elements, but not the elements of mutable and live storages, which are changed in place.
#[must_use = "a snapshot keeps its generation until it is dropped"]
#[derive(Clone)]
pub struct Snapshot {
    pub(super) loader: Arc<Loader>,
    generation: Arc<Generation>,
    pub(super) tagged_garbage: Arc<OnceLock<TaggedGarbage>>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({:?}, generation {})", self.loader.store.paths.root(), self.generation())
    }
}

/// The header of a tensor. Its storage is not opened.
///
/// ```
/// # use stridemap::Store;
/// # let dir = tempfile::tempdir()?;
/// # let store = Store::create(dir.path().join("x.smap"))?;
/// store.save("x", &[[1f32, 2., 3.], [4., 5., 6.]])?;
/// store.save_view("column", &store.load("x")?.select(1, 1)?)?;
/// let column = store.snapshot().iter_tensors("column")?.next().unwrap()?;
/// let header = &column.header;
/// assert_eq!((header.size(), header.stride(), header.storage_offset()), (&[2][..], &[3][..], 1));
/// assert_eq!((header.numel(), header.nbytes(), header.is_contiguous()), (2, 8, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name of the tensor.
    pub name: String,
    /// The id of its storage.
    pub storage_id: u64,
    /// The dtype, size, stride and storage offset, and the names of its dimensions.
    pub header: Header,
}

impl TensorInfo {
    /// Creates the header of a tensor in a file of a different format. The caller assigns the storage ids.
    ///
    /// ```
    /// use stridemap::{DType, Header, TensorInfo};
    ///
    /// let info = TensorInfo::new("x".to_owned(), Header::contiguous(DType::F32, &[3, 2])?, 1);
    /// assert_eq!((info.header.size(), info.header.nbytes(), info.storage_id), (&[3, 2][..], 24, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn new(name: String, header: Header, storage_id: u64) -> Self {
        TensorInfo { name, storage_id, header }
    }

    pub(super) fn of_record(name: String, record: TensorRecord) -> Self {
        TensorInfo::new(name, Arc::unwrap_or_clone(record.header), record.storage_id)
    }

    /// Returns the ranges of the storage that the elements occupy. Ranges that are at most `gap_bytes` apart are
    /// joined, so their number is at most 1 plus the length of the [`byte_range`](Header::byte_range) divided by
    /// `gap_bytes`. Usually the ranges are in ascending order; those of a view that overlaps itself may repeat bytes.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2., 3.], [4., 5., 6.]])?;
    /// store.save_view("column", &store.load("x")?.select(1, 1)?)?;
    /// let column = store.snapshot().iter_tensors("column")?.next().unwrap()?;
    /// assert_eq!(column.header.byte_range(), Some(4..20));
    /// assert_eq!(column.byte_runs(0), [4..8, 16..20]);
    /// assert_eq!(column.byte_runs(8), [4..20]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn byte_runs(&self, gap_bytes: u64) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        // A header that no storage can have occupies nothing.
        if let Some(range) = self.header.byte_range() {
            let _ = for_each_range(&self.header, range.end, gap_bytes, |run| runs.push(run));
        }
        runs
    }

    /// Returns whether the two tensors have a byte in common: they have the same storage, and an element of one
    /// overlaps an element of the other. Both headers must be of the same store or file. The answer is as exact as that
    /// of [`Tensor::overlaps`].
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2.], [3., 4.]])?;
    /// let x = store.load("x")?;
    /// store.save_view("left", &x.select(1, 0)?)?;
    /// store.save_view("right", &x.select(1, 1)?)?;
    /// let tensors = store.snapshot().iter_tensors("")?.collect::<Result<Vec<_>, _>>()?; // left, right, x
    /// assert!(tensors[0].overlaps(&tensors[2]) && !tensors[0].overlaps(&tensors[1]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn overlaps(&self, other: &TensorInfo) -> bool {
        self.storage_id == other.storage_id && overlaps(&self.header, &other.header)
    }

    /// Like [`overlaps`](Self::overlaps), for many pairs of tensors: takes the steps of its search from `steps_left`.
    /// A pair of ordinary tensors takes fewer than 100 steps, and a million steps take about 20 milliseconds. Returns
    /// `None` if the tensors have too many dimensions, with contrived strides, to find out with the steps that are
    /// left, or with 200,000 steps.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[[1f32, 2.], [3., 4.]])?;
    /// store.save_view("row", &store.load("x")?.select(0, 1)?)?;
    /// let tensors = store.snapshot().iter_tensors("")?.collect::<Result<Vec<_>, _>>()?;
    /// let mut steps_left = 1_000_000;
    /// assert_eq!(tensors[0].overlaps_within(&tensors[1], &mut steps_left), Some(true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn overlaps_within(&self, other: &TensorInfo, steps_left: &mut u64) -> Option<bool> {
        if self.storage_id != other.storage_id {
            return Some(false);
        }
        overlaps_within(&self.header, &other.header, steps_left)
    }
}

/// As a map with the names of the methods: `name`, `dtype`, `size`, `stride`, `storage_offset`, `storage_id` and
/// `dim_names`.
#[cfg(feature = "serde")]
impl serde::Serialize for TensorInfo {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut map = serializer.serialize_struct("TensorInfo", 7)?;
        map.serialize_field("name", &self.name)?;
        map.serialize_field("dtype", &self.header.dtype())?;
        map.serialize_field("size", self.header.size())?;
        map.serialize_field("stride", self.header.stride())?;
        map.serialize_field("storage_offset", &self.header.storage_offset())?;
        map.serialize_field("storage_id", &self.storage_id)?;
        map.serialize_field("dim_names", &self.header.dim_names())?;
        map.end()
    }
}

/// A storage of a store, or a run of bytes in a file of a different format.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StorageInfo {
    /// The id, which the store never reuses.
    pub id: u64,
    /// How its bytes may change.
    pub kind: StorageKind,
    /// The length in bytes.
    pub size_bytes: u64,
    /// The file that contains it.
    pub file: PathBuf,
    /// Its offset in that file, in bytes.
    pub offset_bytes: u64,
    /// The number of names that refer to it.
    pub tensor_count: u64,
}

/// The maximum number of runs of bytes that are counted for one storage.
const MAX_RUNS: u64 = 1 << 20;

/// Both take the headers of the tensors; those of other storages are left out.
impl StorageInfo {
    /// Returns how many of its bytes the tensors reach, each counted once. Returns `None` if these are more than a
    /// million separate runs of bytes.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![0u8; 10_000])?;
    /// store.save_view("x", &store.load("x")?.narrow(0, 0, 100)?)?;
    /// let snapshot = store.snapshot();
    /// let tensors = snapshot.iter_tensors("")?.collect::<Result<Vec<_>, _>>()?;
    /// let storage = snapshot.storages().next().unwrap()?;
    /// assert_eq!((storage.reached_bytes(&tensors)?, storage.compacted_bytes(&tensors)?), (Some(100), 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a tensor that reaches past the storage.
    pub fn reached_bytes(&self, tensors: &[TensorInfo]) -> Result<Option<u64>> {
        footprint_bytes(&self.own_headers(tensors), self.size_bytes, MAX_RUNS).corrupt_in(&self.file)
    }

    /// Returns the length that a compaction could bring it to: the bytes that the tensors reach, and those that it would
    /// keep between them.
    ///
    /// # Errors
    /// As for [`reached_bytes`](Self::reached_bytes).
    pub fn compacted_bytes(&self, tensors: &[TensorInfo]) -> Result<u64> {
        let repacked = repack(&self.own_headers(tensors), self.size_bytes).corrupt_in(&self.file)?;
        Ok(repacked.length_bytes.min(self.size_bytes))
    }

    fn own_headers<'a>(&self, tensors: &'a [TensorInfo]) -> Vec<&'a Header> {
        let own = tensors.iter().filter(|tensor| tensor.storage_id == self.id);
        own.map(|tensor| &tensor.header).collect()
    }
}

impl Snapshot {
    pub(super) fn new(loader: Arc<Loader>, generation: Arc<Generation>) -> Self {
        Snapshot { loader, generation, tagged_garbage: Arc::default() }
    }

    /// Returns the number of the commit that made this generation; 1 is the empty store.
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

    /// Loads a tensor: looks up its header and opens its storage. No element is read.
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
    /// [`ErrorKind::NameNotFound`](crate::ErrorKind::NameNotFound), with the most similar names;
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a record or a file that breaks a rule of the format;
    /// `NotAllowed` for a storage outside the store, unless [allowed](crate::StoreOptions::external);
    /// `ExternalChanged` if its file changed since it was adopted; `Io`.
    pub fn load(&self, name: &str) -> Result<Tensor> {
        self.loader.load(&self.generation, name)
    }

    /// Loads the tensors whose names begin with `prefix`, by ascending name. This takes one scan, instead of a search
    /// for each.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("encoder.weight", &[1f32, 2.])?;
    /// store.save("head.weight", &[3f32])?;
    /// let snapshot = store.snapshot();
    /// for entry in snapshot.iter_loaded("encoder.")? {
    ///     let (name, tensor) = entry?;
    ///     assert_eq!((name.as_str(), tensor.numel()), ("encoder.weight", 2));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata, `Stale` and `Io`, here and for each item; for each item also those of
    /// [`load`](Self::load).
    pub fn iter_loaded<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<(String, Tensor)>> + 'a> {
        self.loader.store.check_process()?;
        let entries = self.generation.tensors(prefix)?;
        Ok(entries.map(|entry| {
            let (name, record) = entry?;
            let tensor = self.loader.tensor(&self.generation, &name, &record)?;
            Ok((name, tensor))
        }))
    }

    /// Whether a tensor has this name.
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
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn contains(&self, name: &str) -> Result<bool> {
        self.loader.store.check_process()?;
        Ok(self.generation.tensor(name)?.is_some())
    }

    /// Returns the number of tensors, as the metadata states it. No header is read, and the time does not grow with the
    /// number: a generation is counted once, by a look-up of each change since its table was written.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// assert_eq!(store.snapshot().tensor_count()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn tensor_count(&self) -> Result<u64> {
        self.loader.store.check_process()?;
        self.generation.tensor_count()
    }

    /// Returns all names, ascending.
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
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn names(&self) -> Result<Vec<String>> {
        self.loader.store.check_process()?;
        self.generation.tensors("")?.map(|entry| Ok(entry?.0)).collect()
    }

    /// Returns the headers of the tensors whose names begin with `prefix`, by ascending name. This is one seek, then
    /// a scan that reads headers as the iterator advances.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("encoder.weight", &[1f32, 2.])?;
    /// store.save("head.weight", &[3f32])?;
    /// let snapshot = store.snapshot();
    /// for info in snapshot.iter_tensors("encoder.")? {
    ///     let info = info?;
    ///     assert_eq!((info.name.as_str(), info.header.size()), ("encoder.weight", &[2][..]));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`; here and for each item.
    pub fn iter_tensors<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<TensorInfo>> + 'a> {
        self.loader.store.check_process()?;
        let entries = self.generation.tensors(prefix)?;
        Ok(entries.map(|entry| entry.map(|(name, record)| TensorInfo::of_record(name, record))))
    }

    /// Returns the other names whose tensors share a byte with the given one, ascending. A change in place to the
    /// given tensor changes these too. Reads all headers, but no element.
    ///
    /// The result is exact, with the exception described at [`Tensor::overlaps`]: if many tensors have contrived
    /// strides, the others with such strides are returned too.
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
    /// [`ErrorKind::NameNotFound`](crate::ErrorKind::NameNotFound); `Corrupt` for damaged metadata; `Stale`;
    /// `Io`.
    pub fn overlapping(&self, name: &str) -> Result<Vec<String>> {
        let tensor = self.load(name)?;
        let mut names = Vec::new();
        let mut steps_left = MAX_STEPS_TOGETHER;
        for entry in self.generation.tensors("")? {
            let (other_name, other) = entry?;
            if other_name != name
                && Some(other.storage_id) == tensor.storage_id()
                && overlaps_within(tensor.header(), &other.header, &mut steps_left).unwrap_or(true)
            {
                names.push(other_name);
            }
        }
        Ok(names)
    }

    /// Returns the storages, by ascending id.
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
    /// `Corrupt` for damaged metadata; `Stale`; `Io`; for each item.
    pub fn storages(&self) -> impl Iterator<Item = Result<StorageInfo>> + '_ {
        let storages = self.loader.store.check_process().and_then(|()| self.generation.storages());
        let (storages, refused) = match storages {
            Ok(storages) => (Some(storages), None),
            Err(e) => (None, Some(e)),
        };
        let storages = storages.into_iter().flatten();
        let infos = storages.map(|entry| entry.map(|(id, record)| self.storage_info(id, record)));
        refused.map(Err).into_iter().chain(infos)
    }

    fn storage_info(&self, id: u64, record: StorageRecord) -> StorageInfo {
        let kind = StorageKind::of(&record.kind);
        let (file, offset_bytes) = match &record.kind {
            RecordKind::External(external) => {
                (self.loader.store.externals.path(external), external.offset_bytes)
            }
            _ => (self.loader.store.paths.storage(id), 0),
        };
        let StorageRecord { length_bytes: size_bytes, tensor_count, .. } = record;
        StorageInfo { id, kind, size_bytes, file, offset_bytes, tensor_count }
    }

    pub(super) fn generation_arc(&self) -> Arc<Generation> {
        Arc::clone(&self.generation)
    }

    pub(super) fn pinned_generation(&self) -> &Generation {
        &self.generation
    }
}
