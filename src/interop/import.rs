use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use stridemap_format::DType;
use stridemap_format::limits::MAX_STORAGE_BYTES;

use super::contents::{Contents, ForeignStorage, ForeignTensor};
use super::file::RawFile;
use super::foreign::ForeignFile;
use crate::error::Result;
use crate::layout::Layout;
use crate::store::{Store, Transaction};
use crate::tensor::Source;

/// Files of other formats (feature `interop`).
impl Transaction<'_> {
    /// Brings every tensor of a file into storages, under its name with `prefix` before it.
    /// [Attributes](ForeignFile::attributes) are left to the caller.
    ///
    /// Headers keep their strides; tensors that share a storage in the file share one here. `progress` is called with the
    /// bytes of elements read since the last call. Nothing is durable, or seen by others, before the transaction commits;
    /// after an error it holds a part of the tensors, so let it go.
    ///
    /// Where the file system of both can share blocks (btrfs, XFS), a `.safetensors` or `.npy` file of 4 MiB or more is
    /// not copied: one storage is all of it, header and all, and shares its blocks until the file is written. What is
    /// written to the file later never reaches the store. [`Imported`] says what was done.
    ///
    /// # Errors
    /// Those of [`save`](Self::save), of names before anything is read; `ExternalChanged` for a file that was changed since
    /// it was opened; `BadFile` for a member of a zip file that is damaged.
    pub fn import(
        &mut self,
        file: &ForeignFile,
        prefix: &str,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported> {
        let contents = &file.contents;
        let mut imported = Imported { copied_bytes: contents.size_bytes(), shared_bytes: 0 };
        let named = |tensor: &ForeignTensor| format!("{prefix}{}", tensor.name);
        // What is refused is refused before gigabytes are written in vain.
        contents.tensors.iter().try_for_each(|tensor| self.check_free("import", &named(tensor)))?;
        if contents.keeps_storages {
            let mut ids = Vec::with_capacity(contents.storages.len());
            for storage in &contents.storages {
                ids.push(self.stage_storage("import", storage.length_bytes, |sink| {
                    storage.read(0..storage.length_bytes, &mut |bytes| {
                        sink(bytes)?;
                        progress(bytes.len() as u64);
                        Ok(())
                    })
                })?);
            }
            for tensor in &contents.tensors {
                let Some(&id) = ids.get(tensor.storage) else { continue };
                self.save_header("import", &named(tensor), (tensor.dtype, &tensor.layout), id)?;
            }
            return Ok(imported);
        }
        let shared = self.share_files(contents, progress)?;
        for tensor in &contents.tensors {
            let Some(storage) = contents.storages.get(tensor.storage) else { continue };
            if let Some(id) = shared.get(&Arc::as_ptr(&storage.file))
                && let Some(layout) = within_file(storage, tensor)
            {
                self.save_header("import", &named(tensor), (tensor.dtype, &layout), *id)?;
                imported.copied_bytes -= tensor.size_bytes();
                imported.shared_bytes += tensor.size_bytes();
                continue;
            }
            let source = Streamed { storage, tensor, progress: RefCell::new(progress) };
            self.save_dense("import", &named(tensor), &tensor.layout, &source)?;
        }
        Ok(imported)
    }

    /// Stages those files of which blocks can be shared, whole; gives the storages, by file.
    fn share_files(
        &mut self,
        contents: &Contents,
        progress: &mut dyn FnMut(u64),
    ) -> Result<HashMap<*const RawFile, u64>> {
        let mut sizes: HashMap<*const RawFile, (&RawFile, u64)> = HashMap::new();
        for tensor in &contents.tensors {
            let Some(storage) = contents.storages.get(tensor.storage) else { continue };
            if within_file(storage, tensor).is_some() {
                let (_, size_bytes) = sizes.entry(Arc::as_ptr(&storage.file)).or_insert((&storage.file, 0));
                *size_bytes = size_bytes.saturating_add(tensor.size_bytes());
            }
        }
        // What else is in the file would take its place for as long as the storage is there.
        sizes.retain(|_, (file, size_bytes)| {
            let file_bytes = file.length_bytes();
            *size_bytes >= MIN_SHARED_BYTES.max(file_bytes / 2) && file_bytes <= MAX_STORAGE_BYTES
        });
        if sizes.is_empty() {
            return Ok(HashMap::new());
        }
        let mut shared = HashMap::new();
        for storage in &contents.storages {
            let key = Arc::as_ptr(&storage.file);
            let Some((file, size_bytes)) = sizes.remove(&key) else { continue };
            // The header is read as well, and is no element.
            let mut rest_bytes = size_bytes;
            let staged = self.stage_shared("import", file.external(), &mut |bytes| {
                let told_bytes = bytes.min(rest_bytes);
                rest_bytes -= told_bytes;
                progress(told_bytes);
            })?;
            shared.extend(staged.map(|id| (key, id)));
        }
        Ok(shared)
    }
}

/// Where the bytes of an import are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Of elements that were written to the store.
    pub copied_bytes: u64,
    /// Of elements that the store and the file share on the disk, until the file is written.
    pub shared_bytes: u64,
}

/// A smaller tensor would not have a storage of its own either.
const MIN_SHARED_BYTES: u64 = 4 << 20;

/// The layout of a tensor in a storage that is all of its file; none for one that no header can reach there, or whose
/// bytes there are not its elements, or were to be held against a checksum.
fn within_file(storage: &ForeignStorage, tensor: &ForeignTensor) -> Option<Layout> {
    let itemsize = tensor.dtype.itemsize();
    let start_bytes = usize::try_from(storage.offset_bytes).ok()?;
    if !storage.is_range() || storage.form.member.is_some() || !start_bytes.is_multiple_of(itemsize) {
        return None;
    }
    let offset = tensor.layout.offset().checked_add(start_bytes / itemsize)?;
    Layout::new(tensor.layout.size().to_vec(), tensor.layout.stride().to_vec(), offset).ok()
}

/// Files of other formats (feature `interop`).
impl Store {
    /// Copies every tensor of a file into the store, in one commit; [`Transaction::import`] is the same for several files.
    /// The file's [attributes](ForeignFile::attributes) become those of the store.
    ///
    /// # Errors
    /// See [`Store`]; those of [`ForeignFile::open`].
    pub fn import(&self, path: impl AsRef<std::path::Path>, prefix: &str) -> Result<()> {
        let file = ForeignFile::open(path)?;
        let mut txn = self.begin()?;
        txn.import(&file, prefix, &mut |_| ())?;
        for (key, value) in file.attributes() {
            txn.set_attribute(key, value)?;
        }
        txn.commit().map(drop)
    }
}

/// The bytes of a tensor that has them for itself, as they lie.
struct Streamed<'a, 'p> {
    storage: &'a ForeignStorage,
    tensor: &'a ForeignTensor,
    progress: RefCell<&'a mut (dyn FnMut(u64) + 'p)>,
}

impl Source for Streamed<'_, '_> {
    fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    fn size(&self) -> Vec<usize> {
        self.tensor.layout.size().to_vec()
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let itemsize = self.tensor.dtype.itemsize() as u64;
        let start = self.tensor.layout.offset() as u64 * itemsize;
        let end = start + self.tensor.layout.numel() as u64 * itemsize;
        self.storage.read(start..end, &mut |bytes| {
            sink(bytes)?;
            (*self.progress.borrow_mut())(bytes.len() as u64);
            Ok(())
        })
    }
}
