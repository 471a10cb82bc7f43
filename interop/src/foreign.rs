//! Files in other formats, opened and read in place.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use stridemap::import::ExternalFile;
use stridemap::{DType, Error, ErrorKind, Result, Source as _, StorageInfo, StorageKind, Tensor, TensorInfo};

use super::contents::{Contents, ForeignStorage, ForeignTensor, Skipped};
use super::file::RawFile;
use super::file_format::{FileFormat, not_tensors};
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
    pub(super) is_swapping: bool,
    pub(super) untyped: Option<DType>,
    pub(super) is_skipping_unreadable: bool,
}

impl ForeignOptions {
    /// Returns the options of [`ForeignFile::open`].
    #[must_use]
    pub fn new() -> Self {
        ForeignOptions::default()
    }

    /// Converts big-endian NumPy arrays to little-endian when they are read. By default they are refused, because
    /// storages are little-endian.
    #[must_use]
    pub fn byteswap(mut self, is_swapping: bool) -> Self {
        self.is_swapping = is_swapping;
        self
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
    /// Those of [`ForeignFile::open`]; [`ErrorKind::BadFile`] for the index of a sharded model, which refers to other
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
    /// Those of [`open_file`](Self::open_file), and [`ErrorKind::Io`] if the reader or the copy fails.
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
        Ok(ForeignFile { file, contents, by_name: OnceLock::new(), converted: Mutex::default() })
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
    converted: Mutex<HashMap<usize, Weak<ExternalFile>>>,
}

impl ForeignFile {
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

    /// Returns a tensor whose storage is a range of the file. No element is read. Tensors that share a storage in the
    /// file share it here too.
    ///
    /// As an exception, elements that are compressed or [byte-swapped](ForeignOptions::byteswap) are converted into an
    /// unnamed temporary file in the directory that `TMPDIR` names. The conversion verifies the checksum of a zip
    /// member, and so does an import. Reading elements from the file itself does not.
    ///
    /// # Errors
    /// [`ErrorKind::NameNotFound`](stridemap::ErrorKind::NameNotFound), which suggests the nearest names. When
    /// elements are converted, [`ErrorKind::BadFile`](stridemap::ErrorKind::BadFile) and
    /// [`ErrorKind::Io`](stridemap::ErrorKind::Io). Reading elements later returns
    /// [`ErrorKind::ExternalChanged`](stridemap::ErrorKind::ExternalChanged) if the file has changed since it was
    /// opened.
    pub fn load(&self, name: &str) -> Result<Tensor> {
        let tensor = self.found("load", name)?;
        self.tensor(tensor).map_err(|e| e.context(format_args!("load {name:?}")))
    }

    /// Passes the elements of a tensor to `sink` as little-endian bytes in row-major order, in pieces of any length. As in
    /// an import, the checksum of a zip member is verified.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::{ForeignFile, npy};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.npy");
    /// npy::Export::new().write(&path, &Tensor::from_vec(vec![1u8, 2], &[2])?, |_| ())?;
    /// let mut bytes = Vec::new();
    /// ForeignFile::open(&path)?.write_elements("x", &mut |piece| Ok(bytes.extend_from_slice(piece)))?;
    /// assert_eq!(bytes, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`load`](Self::load) and of `sink`; [`ErrorKind::BadFile`](stridemap::ErrorKind::BadFile) for a damaged
    /// member of a zip file; [`ErrorKind::ExternalChanged`](stridemap::ErrorKind::ExternalChanged) if the file has changed
    /// since it was opened.
    pub fn write_elements(&self, name: &str, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let tensor = self.found("read", name)?;
        let Some(storage) = self.contents.storages.get(tensor.storage) else { return Ok(()) };
        let Some(range) = tensor.header.byte_range() else { return Ok(()) };
        let all = 0..storage.length_bytes;
        let write = || {
            // Only a read of all bytes of a member verifies its checksum.
            if storage.conversion.member.is_some() && !(tensor.header.is_contiguous() && range == all) {
                storage.read(all, &mut |_| Ok(()))?;
            }
            match tensor.header.is_contiguous() {
                true => storage.read(range.clone(), sink),
                false => self.tensor(tensor)?.write_to(sink),
            }
        };
        write().map_err(|e| e.context(format_args!("read {name:?} of {}", self.path().display())))
    }

    fn found(&self, verb: &str, name: &str) -> Result<&ForeignTensor> {
        self.find(name).ok_or_else(|| {
            let path = self.path().display();
            let names = self.by_name().iter().map(|&index| self.name(index).to_owned());
            Error::name_not_found(verb, name, names).context(path)
        })
    }

    /// Reads a storage of the file to its end. Returns whether its bytes have a checksum, which was right: that of a
    /// member of a zip file. Other files have none, so that only an error of the disk is found. `progress` is called with the
    /// bytes read since the last call.
    ///
    /// ```
    /// use stridemap::{ErrorKind, Tensor};
    /// use stridemap_interop::{ForeignFile, npz};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.npz");
    /// let x = Tensor::from_vec(vec![7u8; 100], &[100])?;
    /// npz::Export::new().write(&path, &[("x".to_owned(), x)], |_| ())?;
    /// let file = ForeignFile::open(&path)?;
    /// assert!(file.storages().all(|storage| file.verify_storage(storage.id, |_| ()).is_ok_and(|has_sum| has_sum)));
    ///
    /// let mut bytes = std::fs::read(&path)?;
    /// let at = bytes.windows(8).position(|run| run == [7; 8]).unwrap_or_default();
    /// bytes[at] = 8;
    /// std::fs::write(&path, bytes)?;
    /// let damaged = ForeignFile::open(&path)?.verify_storage(1, |_| ()).unwrap_err();
    /// assert_eq!(damaged.kind(), ErrorKind::BadFile);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] for a wrong checksum; [`ErrorKind::OutOfRange`] for a number that no storage has;
    /// [`ErrorKind::ExternalChanged`] if the file has changed since it was opened; [`ErrorKind::Io`].
    pub fn verify_storage(&self, id: u64, mut progress: impl FnMut(u64)) -> Result<bool> {
        let index = id.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let Some(storage) = index.and_then(|index| self.contents.storages.get(index)) else {
            let (path, count) = (self.path().display(), self.contents.storages.len());
            let message = format!("verify {path}: it has {count} storages, and none has the number {id}");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        };
        storage.read(0..storage.length_bytes, &mut |bytes| {
            progress(bytes.len() as u64);
            Ok(())
        })?;
        Ok(storage.conversion.member.as_ref().is_some_and(|member| member.crc32.is_some()))
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

    fn tensor(&self, tensor: &ForeignTensor) -> Result<Tensor> {
        let (header, index) = (tensor.header.clone(), tensor.storage);
        match self.contents.storages.get(index) {
            Some(storage) if !storage.is_range() => {
                let file = self.converted(index, storage)?;
                Tensor::from_file(&file, 0..storage.length_bytes, header)
            }
            Some(storage) => Tensor::from_file(storage.file.external(), storage.bytes_range(), header),
            None => Tensor::zeros(header.dtype(), header.size()),
        }
    }

    /// Returns a storage as a converted file. Its tensors share this file for as long as any of them refers to it.
    fn converted(&self, index: usize, storage: &ForeignStorage) -> Result<Arc<ExternalFile>> {
        let mut converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = converted.get(&index).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = Arc::new(storage.convert()?);
        converted.insert(index, Arc::downgrade(&file));
        Ok(file)
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
