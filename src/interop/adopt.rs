use std::path::Path;
use std::sync::Arc;

use super::contents::ForeignTensor;
use super::foreign::ForeignFile;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Store, Transaction};

/// Files of other formats (feature `interop`).
impl Transaction<'_> {
    /// Gives every tensor of a file a name, with `prefix` before its own, and leaves the elements where they are: each of
    /// the file's storages becomes an external storage of the store, a range of that file. Nothing is copied, however
    /// long the file is. [Attributes](ForeignFile::attributes) are left to the caller.
    ///
    /// From then on the file must stay as it is. The store records where it is, from the directory that holds the store on
    /// when it is beneath that, else by its absolute path; and its device, inode, length and mtime. A tensor is loaded
    /// only while these are the same, from a handle that [may open the file](crate::StoreOptions::external); deleting the
    /// names again never touches the file. A file system whose clock is coarser than 10 milliseconds (FAT: two seconds)
    /// can hide a change that comes right after the file was written; and a program that had mapped it for writing before can
    /// go on unnoticed until the kernel has written its pages out. The file is not synced.
    ///
    /// # Errors
    /// `BadFile` for elements that are compressed, or to be byte-swapped; `ExternalRefused`, when this handle may not open
    /// the file; `ExternalChanged` when it was changed since it was opened; `InvalidArgument` for a path that is not UTF-8,
    /// and for a name; `NameExists` after [`OnExisting::Refuse`](crate::OnExisting::Refuse); `Io`. After each of these the
    /// transaction is as it was before.
    pub fn adopt(&mut self, file: &ForeignFile, prefix: &str) -> Result<()> {
        let action = format!("adopt {}", file.path().display());
        let contents = &file.contents;
        file.check_adoptable()?;
        let named = |tensor: &ForeignTensor| format!("{prefix}{}", tensor.name);
        contents.tensors.iter().try_for_each(|tensor| self.check_free("adopt", &named(tensor)))?;
        // A model may be several files, each of which is stamped.
        let files = contents.storages.chunk_by(|one, other| Arc::ptr_eq(&one.file, &other.file));
        let files = files.filter_map(|storages| {
            let ranges = storages.iter().map(|storage| (storage.offset_bytes, storage.length_bytes));
            Some((storages.first()?.file.external().as_ref(), ranges))
        });
        let ids = self.stage_ranges(&action, files)?;
        for tensor in &contents.tensors {
            let Some(&id) = ids.get(tensor.storage) else { continue };
            self.save_header("adopt", &named(tensor), (tensor.dtype, &tensor.layout), id)?;
        }
        Ok(())
    }
}

impl ForeignFile {
    /// Whether its elements can be used where they lie, which [`Transaction::adopt`] asks for.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] for elements that are compressed, or to be byte-swapped.
    pub fn check_adoptable(&self) -> Result<()> {
        let contents = &self.contents;
        for tensor in &contents.tensors {
            let Some(storage) = contents.storages.get(tensor.storage) else { continue };
            if !storage.is_range() {
                let what = if storage.form.swapped_bytes > 1 { "big-endian" } else { "compressed" };
                let message = format!(
                    "adopt {}: the elements of {:?} are {what}, and cannot be used where they lie; import the file",
                    self.path().display(),
                    tensor.name
                );
                return Err(Error::new(ErrorKind::BadFile, message));
            }
        }
        Ok(())
    }
}

/// Files of other formats (feature `interop`).
impl Store {
    /// Gives every tensor of a file a name and leaves the elements where they are, in one commit: see
    /// [`Transaction::adopt`]. The file's [attributes](ForeignFile::attributes) become those of the store.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use stridemap::interop::safetensors;
    /// use stridemap::{ExternalFiles, OnExisting, StoreOptions, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path();
    /// let file = dir.join("points.safetensors");
    /// let points = [("points".to_owned(), Tensor::from_vec(vec![1f32, 4., 2., 1.], &[2, 2])?)];
    /// safetensors::write(&file, &points, &BTreeMap::new(), OnExisting::Refuse, &mut |_| ())?;
    ///
    /// let store = StoreOptions::new().external(ExternalFiles::Beside).create(dir.join("points.smap"))?;
    /// store.adopt(&file, "")?;
    /// store.save_view("points_t", &store.load("points")?.t()?)?; // a header over the file's own bytes
    /// assert_eq!(store.load("points_t")?.read::<f32>()?, [1., 2., 4., 1.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`]; those of [`ForeignFile::open`] and of [`Transaction::adopt`].
    pub fn adopt(&self, path: impl AsRef<Path>, prefix: &str) -> Result<()> {
        let file = ForeignFile::open(path)?;
        let mut txn = self.begin()?;
        txn.adopt(&file, prefix)?;
        for (key, value) in file.attributes() {
            txn.set_attribute(key, value)?;
        }
        txn.commit().map(drop)
    }
}
