//! Writes models as one file, or as several and an index.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
#[cfg(doc)]
use stridemap::ErrorKind;
use stridemap::{OnExisting, Result, Tensor};

use super::dtype::shape_of;
use super::{MAX_HEADER_BYTES, METADATA_KEY, PREAMBLE_BYTES, shards};
use crate::file::{self, unwritable};

/// Options for writing a model in the safetensors format. By default, it is written to one file, without
/// `__metadata__`, and an existing file is replaced.
///
/// ```
/// use stridemap_interop::{ForeignFile, safetensors};
/// use stridemap::{DType, Tensor};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// let tensors = ["a", "b", "c"].map(|name| (name.to_owned(), Tensor::zeros(DType::F32, &[25]).unwrap()));
/// let export = safetensors::Export::new().max_shard_bytes(200);
/// let written = export.write(&path, &tensors, |_| ())?;
/// assert_eq!(export.paths(&path, &tensors)?, written);
/// let names: Vec<_> = written.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
/// assert_eq!(
///     names,
///     ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
/// );
/// assert_eq!(ForeignFile::open(&written[2])?.tensors().count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Export<'a> {
    metadata: Option<&'a BTreeMap<String, String>>,
    on_existing: OnExisting,
    max_shard_bytes: Option<u64>,
}

impl<'a> Export<'a> {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Export::default()
    }

    /// Sets the texts of `__metadata__`, which are stored beside the tensors. If there are several shards, each has
    /// them.
    #[must_use]
    pub fn metadata(mut self, metadata: &'a BTreeMap<String, String>) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Sets whether existing files may be replaced. It applies to every file that is written.
    #[must_use]
    pub fn on_existing(mut self, on_existing: OnExisting) -> Self {
        self.on_existing = on_existing;
        self
    }

    /// Splits the model into shards of at most `max_shard_bytes` bytes of elements, unless all tensors fit in one. A
    /// larger tensor gets a shard of its own. For `model.safetensors` the shards are `model-00001-of-00002.safetensors`
    /// and so on, and the index is `model.safetensors.index.json`, as in transformers. Tensors are assigned to shards
    /// in order of name.
    #[must_use]
    pub fn max_shard_bytes(mut self, max_shard_bytes: u64) -> Self {
        self.max_shard_bytes = Some(max_shard_bytes);
        self
    }

    /// Writes tensors and text in the same layout as the safetensors library. Returns the paths of the files; the path
    /// of an index is last.
    ///
    /// Views are written in their logical order. A file is written under a temporary name and then renamed, so `path`
    /// never holds a partial file, and the tensors may come from the file that is replaced. A symbolic link is
    /// replaced, not followed. The files are durable on return. `progress` is called with the bytes of elements
    /// written since the last call.
    ///
    /// Several files are renamed to their final names when all of them are complete and synced. An existing index is
    /// removed first, then the shards are placed, then the new index, so an index never refers to shards of another
    /// export. After an error the old files get their names back. A process that is killed during the renames may
    /// leave shards without an index. Files of an earlier export with different names are kept.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`], before anything is written, for what the format cannot hold: `complex128`, the name
    /// `__metadata__`, a duplicate name, `float4_e2m1fn_x2` without dimensions, sizes whose product overflows although
    /// one is 0, more than 100 MB of header, more than 4096 shards, or, for an index, a file name that is not UTF-8.
    /// [`ErrorKind::AlreadyExists`] with [`OnExisting::Refuse`], and if `path` is not a regular file.
    /// [`ErrorKind::ReadOnly`], [`ErrorKind::Io`], and the errors of reading the elements.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        tensors: &[(String, Tensor)],
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<PathBuf>> {
        let path = path.as_ref();
        let entries = entries_of(path, tensors)?;
        let none = BTreeMap::new();
        let metadata = self.metadata.unwrap_or(&none);
        let mut shards = shards::split(entries, self.max_shard_bytes);
        if shards.len() > 1 {
            return shards::write(path, shards, metadata, self.on_existing, &mut progress);
        }
        let shard = Shard::new(path, shards.pop().unwrap_or_default(), metadata)?;
        file::write(path, &shard.header, shard.tensors(), self.on_existing, &mut progress)?;
        Ok(vec![path.to_path_buf()])
    }

    /// Returns the paths of the files that [`write`](Self::write) would write, in the same order. Nothing is written.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] as for [`write`](Self::write).
    pub fn paths(&self, path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> Result<Vec<PathBuf>> {
        let path = path.as_ref();
        match shards::split(entries_of(path, tensors)?, self.max_shard_bytes).len() {
            0 | 1 => Ok(vec![path.to_path_buf()]),
            count => shards::paths(path, count),
        }
    }

    /// Writes tensors and text to any writer, such as a pipe, in one pass and in pieces. The model is never split.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::{ForeignOptions, safetensors};
    /// let tensors = [("x".to_owned(), Tensor::from_vec(vec![1u8, 2], &[2])?)];
    /// let mut file = tempfile::tempfile()?;
    /// safetensors::Export::new().write_to(&mut file, &tensors, |_| ())?;
    /// let file = ForeignOptions::new().open_file(file, "spooled")?;
    /// assert_eq!(file.load("x")?.read::<u8>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`], before anything is written, as for [`write`](Self::write); [`ErrorKind::Io`], whose
    /// source is the error of the writer; the errors of reading the elements.
    pub fn write_to(
        &self,
        mut writer: impl Write,
        tensors: &[(String, Tensor)],
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        let path = Path::new(file::OUTPUT);
        let none = BTreeMap::new();
        let shard = Shard::new(path, entries_of(path, tensors)?, self.metadata.unwrap_or(&none))?;
        file::write_to(path, &mut writer, &shard.header, shard.tensors(), &mut progress)
    }
}

/// A tensor that the format can hold.
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) tensor: &'a Tensor,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Returns all tensors, sorted by name.
fn entries_of<'a>(path: &Path, tensors: &'a [(String, Tensor)]) -> Result<Vec<Entry<'a>>> {
    let mut names = BTreeSet::from([METADATA_KEY]);
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        if !names.insert(name) {
            let what = format!("the name {name:?} is reserved by the format or used by another tensor");
            return Err(unwritable(path, what));
        }
        let (dtype, shape) = shape_of(tensor).ok_or_else(|| {
            let (dtype, size) = (tensor.dtype(), tensor.size());
            unwritable(path, format!("tensor {name:?}: safetensors cannot hold {dtype} of size {size:?}"))
        })?;
        entries.push(Entry { name, tensor, dtype, shape });
    }
    entries.sort_by_key(|entry| entry.name);
    Ok(entries)
}

/// The contents of one file: its header, and its tensors in order.
pub(super) struct Shard<'a> {
    pub(super) header: Vec<u8>,
    entries: Vec<Entry<'a>>,
}

impl<'a> Shard<'a> {
    pub(super) fn new(
        path: &Path,
        mut entries: Vec<Entry<'a>>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        // Sorted by descending alignment, so that every tensor is aligned, and then by name, so that the order does not
        // depend on the caller's.
        entries.sort_by_key(|entry| (Reverse(entry.dtype), entry.name));
        let mut end_bytes = 0usize;
        let infos = entries.iter().map(|entry| {
            let start_bytes = end_bytes;
            end_bytes = start_bytes.saturating_add(entry.tensor.nbytes());
            let data_offsets = (start_bytes, end_bytes);
            (
                entry.name.to_owned(),
                TensorInfo { dtype: entry.dtype, shape: entry.shape.clone(), data_offsets },
            )
        });
        let infos: Vec<_> = infos.collect();
        // Refuses files that could not be read again: sizes whose product overflows.
        Metadata::new(None, infos.clone()).map_err(|e| unwritable(path, e.to_string()))?;
        let header = FileHeader { metadata, tensors: infos };
        let mut json = serde_json::to_vec(&header).map_err(|e| unwritable(path, e.to_string()))?;
        json.resize(json.len().next_multiple_of(PREAMBLE_BYTES), b' ');
        let header_bytes = json.len() as u64;
        if header_bytes > MAX_HEADER_BYTES {
            let what = format!("a header of {header_bytes} bytes; at most {MAX_HEADER_BYTES} are allowed");
            return Err(unwritable(path, what));
        }
        Ok(Shard { header: [&header_bytes.to_le_bytes(), json.as_slice()].concat(), entries })
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &'a Tensor> {
        self.entries.iter().map(|entry| entry.tensor)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().map(|entry| entry.name)
    }
}

/// A header with a fixed order of entries. The crate's own serializer orders the metadata differently in every run.
struct FileHeader<'a> {
    metadata: &'a BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

impl Serialize for FileHeader<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            object.serialize_entry(METADATA_KEY, self.metadata)?;
        }
        for (name, info) in &self.tensors {
            object.serialize_entry(name, info)?;
        }
        object.end()
    }
}
