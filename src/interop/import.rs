use std::cell::RefCell;

use stridemap_format::DType;

use super::contents::{ForeignStorage, ForeignTensor};
use super::foreign::ForeignFile;
use crate::error::Result;
use crate::store::{Store, Transaction};
use crate::tensor::Source;

/// Files of other formats (feature `interop`).
impl Transaction<'_> {
    /// Copies every tensor of a file into storages, under its name with `prefix` before it.
    /// [Attributes](ForeignFile::attributes) are left to the caller.
    ///
    /// Headers keep their strides; tensors that share a storage in the file share one here. `progress` is called with the
    /// bytes of elements read since the last call. Nothing is durable, or seen by others, before the transaction commits;
    /// after an error it holds a part of the tensors, so let it go.
    ///
    /// # Errors
    /// Those of [`save`](Self::save); `Io` also for a file that has been cut since it was opened.
    pub fn import(&mut self, file: &ForeignFile, prefix: &str, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let contents = &file.contents;
        let named = |tensor: &ForeignTensor| format!("{prefix}{}", tensor.name);
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
            return contents.tensors.iter().try_for_each(|tensor| match ids.get(tensor.storage) {
                Some(&id) => self.save_header("import", &named(tensor), (tensor.dtype, &tensor.layout), id),
                None => Ok(()),
            });
        }
        for tensor in &contents.tensors {
            let Some(storage) = contents.storages.get(tensor.storage) else { continue };
            let source = Streamed { storage, tensor, progress: RefCell::new(progress) };
            self.save_dense("import", &named(tensor), &tensor.layout, &source)?;
        }
        Ok(())
    }
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
