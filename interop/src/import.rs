//! Copies the tensors of files into a store.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use stridemap::import::StorageKey;
use stridemap::{DType, Error, Header, Result, Source, Store, Transaction};

use super::contents::{ForeignTensor, TYPE_KEY};
use super::file::RawFile;
use super::foreign::ForeignFile;
use super::foreign_storage::ForeignStorage;

/// Copies every tensor of a file into a store, in one commit, with `prefix` before its name. The file's
/// [attributes](ForeignFile::attributes) become those of the prefix; with the prefix `""`, those of the store. To
/// import several files in one commit, use [`ForeignFile::import_into`].
///
/// ```
/// use stridemap_interop::npy;
/// use stridemap::{Store, Tensor};
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let points = Tensor::from_vec(vec![1f32, 4., 2., 1.], &[2, 2])?;
/// npy::Export::new().write(dir.join("points.npy"), &points, |_| ())?;
///
/// let store = Store::create(dir.join("points.smap"))?;
/// stridemap_interop::import(&store, dir.join("points.npy"), "imported.")?;
/// assert_eq!(store.load("imported.points")?.read::<f32>()?, [1., 4., 2., 1.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`Store`], [`ForeignFile::open`] and [`ForeignFile::import_into`].
pub fn import(store: &Store, path: impl AsRef<Path>, prefix: &str) -> Result<()> {
    commit(store, path.as_ref(), prefix, |file, txn| file.import_into(txn, prefix, |_| ()).map(drop))
}

/// Commits the tensors of a file, and its attributes as those of the prefix.
pub(super) fn commit(
    store: &Store,
    path: &Path,
    prefix: &str,
    add: impl FnOnce(&ForeignFile, &mut Transaction<'_>) -> Result<()>,
) -> Result<()> {
    let file = ForeignFile::open(path)?;
    let mut txn = store.begin()?;
    add(&file, &mut txn)?;
    for (key, value) in file.attributes() {
        txn.set_attribute(prefix, key, value)?;
    }
    txn.commit().map(drop)
}

impl ForeignFile {
    /// Copies every tensor of the file into the store, with `prefix` before its name. The caller saves the
    /// [attributes](Self::attributes).
    ///
    /// Headers keep their strides. Tensors of a checkpoint that share a storage, and the fields of a structured array,
    /// share one in the store. `progress` is called with the bytes of elements read since the last call. Nothing is
    /// durable or visible to others until the transaction commits. After an error the transaction may hold some of the
    /// tensors and should be dropped.
    ///
    /// If the file and the store are on one file system that can share blocks (btrfs, XFS), a `.safetensors`, `.npy`
    /// or `.gguf` file with 4 MiB of elements or more is not copied. One storage is then the whole file, header included, and
    /// shares its blocks until the file is modified. Changes to the file never reach the store. Structured arrays, and
    /// elements that are byte-swapped or not aligned in the file, are still copied. [`Imported`] tells how much was
    /// copied and how much is shared.
    ///
    /// # Errors
    /// Those of [`Transaction::save`], where names are checked before anything is read; `ExternalChanged` if the file
    /// has changed since it was opened; `BadFile` for a damaged member of a zip file.
    pub fn import_into(
        &self,
        txn: &mut Transaction<'_>,
        prefix: &str,
        progress: impl FnMut(u64),
    ) -> Result<Imported> {
        self.import_some_into(txn, prefix, |_| true, progress)
    }

    /// Like [`import_into`](Self::import_into), for the tensors whose names in the file `is_selected` accepts. The caller
    /// saves others in another way, such as with [`write_elements`](Self::write_elements).
    ///
    /// # Errors
    /// Those of [`import_into`](Self::import_into).
    pub fn import_some_into(
        &self,
        txn: &mut Transaction<'_>,
        prefix: &str,
        is_selected: impl Fn(&str) -> bool,
        mut progress: impl FnMut(u64),
    ) -> Result<Imported> {
        let tensors = self.contents.tensors.iter().filter(|tensor| is_selected(&tensor.name));
        let tensors: Vec<&ForeignTensor> = tensors.collect();
        let mut import_all = || {
            // Fail early, before gigabytes are written.
            let names = names_of(&tensors, prefix, txn)?;
            self.set_types(txn, (&tensors, &names))?;
            self.import_tensors(txn, (&tensors, &names), &mut progress)
        };
        import_all().map_err(|e: Error| e.context(format_args!("import {}", self.path().display())))
    }

    /// Saves the types of tensors that no dtype has.
    pub(super) fn set_types(
        &self,
        txn: &mut Transaction<'_>,
        (tensors, names): (&[&ForeignTensor], &[String]),
    ) -> Result<()> {
        tensors.iter().zip(names).try_for_each(|(tensor, name)| set_type(txn, name, tensor.gguf_type))
    }

    /// Saves the [attributes](Self::attributes_of) of a tensor for the tensor with a name in a transaction, and removes those
    /// that an earlier tensor of this name had from a file. An import does this by itself; call it for what is saved with
    /// [`write_elements`](Self::write_elements).
    ///
    /// ```
    /// use stridemap::Store;
    /// use stridemap_interop::{ForeignFile, gguf};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf/common.gguf");
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     txn.save("x", &[1u8, 2])?;
    ///     ForeignFile::open(path)?.copy_attributes_of("blocks.Q4_0", txn, "x")
    /// })?;
    /// assert_eq!(store.snapshot().attributes("x")[gguf::TYPE_KEY], "Q4_0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Transaction::set_attribute`].
    pub fn copy_attributes_of(&self, name: &str, txn: &mut Transaction<'_>, new: &str) -> Result<()> {
        let attributes = self.attributes_of(name);
        set_type(txn, new, attributes.get(TYPE_KEY).map(String::as_str))
    }

    /// Copies the storages that these tensors share. Returns them by index.
    fn import_storages(
        &self,
        txn: &mut Transaction<'_>,
        tensors: &[&ForeignTensor],
        progress: &mut dyn FnMut(u64),
    ) -> Result<HashMap<usize, StorageKey>> {
        let mut keys = HashMap::new();
        let used: HashSet<usize> = tensors.iter().map(|tensor| tensor.storage).collect();
        let is_shared = |(index, it): &(usize, &ForeignStorage)| it.is_imported_whole && used.contains(index);
        for (index, storage) in self.contents.storages.iter().enumerate().filter(is_shared) {
            let key = txn.stage(Some(storage.length_bytes), |sink| {
                storage.read(0..storage.length_bytes, &mut |bytes| {
                    sink(bytes)?;
                    progress(bytes.len() as u64);
                    Ok(())
                })
            })?;
            keys.insert(index, key);
        }
        Ok(keys)
    }

    fn import_tensors(
        &self,
        txn: &mut Transaction<'_>,
        (tensors, names): (&[&ForeignTensor], &[String]),
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported> {
        let whole = self.import_storages(txn, tensors, progress)?;
        let whole_bytes = whole.keys().filter_map(|&index| self.contents.storages.get(index));
        let whole_bytes = whole_bytes.map(|storage| storage.length_bytes).fold(0, u64::saturating_add);
        let mut imported = Imported { copied_bytes: whole_bytes, shared_bytes: 0 };
        let shared = self.share_files(txn, tensors, progress)?;
        for (&tensor, name) in tensors.iter().zip(names) {
            if let Some(&key) = whole.get(&tensor.storage) {
                txn.save_header(name, &tensor.header, key)?;
                continue;
            }
            let Some(storage) = self.contents.storages.get(tensor.storage) else { continue };
            if let Some(&key) = shared.get(&Arc::as_ptr(&storage.file))
                && let Some(header) = header_in_file(storage, tensor)
            {
                txn.save_header(name, &header, key)?;
                imported.shared_bytes += tensor.size_bytes();
                continue;
            }
            imported.copied_bytes += tensor.size_bytes();
            let source = Streamed { storage, tensor, progress: RefCell::new(progress) };
            let header = &tensor.header;
            let row_major = Header::contiguous(header.dtype(), header.size());
            if row_major.is_ok_and(|row_major| row_major.stride() == header.stride()) {
                txn.save(name, &source)?;
            } else {
                let key = txn.stage(Some(tensor.size_bytes()), |sink| source.write_to(sink))?;
                txn.save_header(name, &header.clone().with_storage_offset(0), key)?;
            }
        }
        Ok(imported)
    }

    /// Stages whole files that can share their blocks with the store. Returns their storages, by file.
    fn share_files(
        &self,
        txn: &mut Transaction<'_>,
        tensors: &[&ForeignTensor],
        progress: &mut dyn FnMut(u64),
    ) -> Result<HashMap<*const RawFile, StorageKey>> {
        let mut sizes: HashMap<*const RawFile, (&RawFile, u64)> = HashMap::new();
        for tensor in tensors {
            let Some(storage) = self.contents.storages.get(tensor.storage) else { continue };
            if header_in_file(storage, tensor).is_some() {
                let (_, size_bytes) = sizes.entry(Arc::as_ptr(&storage.file)).or_insert((&storage.file, 0));
                *size_bytes = size_bytes.saturating_add(tensor.size_bytes());
            }
        }
        // The storage keeps the whole file allocated, so at least half of the file must be elements.
        sizes.retain(|_, (file, size_bytes)| *size_bytes >= MIN_SHARED_BYTES.max(file.length_bytes() / 2));
        let mut shared = HashMap::new();
        for storage in &self.contents.storages {
            let file = Arc::as_ptr(&storage.file);
            let Some((_, mut rest_bytes)) = sizes.remove(&file) else { continue };
            // The header is read too, but does not count as elements.
            let key = txn.stage_shared(storage.file.external(), &mut |bytes| {
                let reported_bytes = bytes.min(rest_bytes);
                rest_bytes -= reported_bytes;
                progress(reported_bytes);
            })?;
            shared.extend(key.map(|key| (file, key)));
        }
        Ok(shared)
    }
}

fn set_type(txn: &mut Transaction<'_>, name: &str, gguf_type: Option<&str>) -> Result<()> {
    match gguf_type {
        Some(gguf_type) => txn.set_attribute(name, TYPE_KEY, gguf_type),
        None if txn.attributes(name).contains_key(TYPE_KEY) => txn.remove_attribute(name, TYPE_KEY),
        None => Ok(()),
    }
}

/// Returns the names that tensors will have. It is an error if the transaction does not accept one.
pub(super) fn names_of(
    tensors: &[&ForeignTensor],
    prefix: &str,
    txn: &Transaction<'_>,
) -> Result<Vec<String>> {
    let names = tensors.iter().map(|tensor| format!("{prefix}{}", tensor.name));
    names.map(|name| txn.check_name(&name).map(|()| name)).collect()
}

/// The number of bytes of elements that an import copied, and the number it shares with the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Bytes written to the store.
    pub copied_bytes: u64,
    /// Bytes that the store and the file share on disk until the file is modified.
    pub shared_bytes: u64,
}

/// The minimum number of bytes of elements in a file whose blocks are shared. It is also the minimum size of a saved
/// tensor that has its own storage.
const MIN_SHARED_BYTES: u64 = 4 << 20;

/// Returns the header of a tensor in a storage that is the whole file. `None` if no header can describe the tensor
/// there, or if its bytes must be converted, have a checksum to verify, or are imported as one storage.
fn header_in_file(storage: &ForeignStorage, tensor: &ForeignTensor) -> Option<Header> {
    let itemsize = tensor.header.dtype().itemsize();
    let start_bytes = usize::try_from(storage.offset_bytes).ok()?;
    if storage.is_imported_whole
        || !storage.is_range()
        || storage.conversion.member.is_some()
        || !start_bytes.is_multiple_of(itemsize)
    {
        return None;
    }
    let offset = tensor.header.storage_offset().checked_add(start_bytes / itemsize)?;
    Some(tensor.header.clone().with_storage_offset(offset))
}

/// The bytes of one tensor, in the order of the file.
struct Streamed<'a, 'p> {
    storage: &'a ForeignStorage,
    tensor: &'a ForeignTensor,
    progress: RefCell<&'a mut (dyn FnMut(u64) + 'p)>,
}

impl Source for Streamed<'_, '_> {
    fn dtype(&self) -> DType {
        self.tensor.header.dtype()
    }

    fn size(&self) -> Vec<usize> {
        self.tensor.header.size().to_vec()
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let itemsize = self.tensor.header.dtype().itemsize() as u64;
        let start = self.tensor.header.storage_offset() as u64 * itemsize;
        let end = start + self.tensor.size_bytes();
        self.storage.read(start..end, &mut |bytes| {
            sink(bytes)?;
            (*self.progress.borrow_mut())(bytes.len() as u64);
            Ok(())
        })
    }
}
