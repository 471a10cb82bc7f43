//! Saves headers of tensors whose elements stay in an existing file.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use stridemap::{Error, ErrorKind, Result, Store, Transaction};

use super::contents::ForeignTensor;
use super::foreign::ForeignFile;
use super::foreign_storage::Conversion;
use super::import::{commit, names_of};

/// Saves a header for every tensor of a file in one commit, with `prefix` before its name, and leaves the elements in
/// the file. The file's [attributes](ForeignFile::attributes) become those of the prefix; with the prefix `""`, those
/// of the store. See [`ForeignFile::adopt_into`].
///
/// ```
/// use stridemap_interop::safetensors;
/// use stridemap::{ExternalFiles, StoreOptions, Tensor};
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let file = dir.join("points.safetensors");
/// let points = [("points".to_owned(), Tensor::from_vec(vec![1f32, 4., 2., 1.], &[2, 2])?)];
/// safetensors::Export::new().write(&file, &points, |_| ())?;
///
/// let store = StoreOptions::new().external(ExternalFiles::Beside).create(dir.join("points.smap"))?;
/// stridemap_interop::adopt(&store, &file, "")?;
/// store.save_view("points_t", &store.load("points")?.t()?)?; // a header over the file's own bytes
/// assert_eq!(store.load("points_t")?.read::<f32>()?, [1., 2., 4., 1.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`Store`], [`ForeignFile::open`] and [`ForeignFile::adopt_into`].
pub fn adopt(store: &Store, path: impl AsRef<Path>, prefix: &str) -> Result<()> {
    commit(store, path.as_ref(), prefix, |file, txn| file.adopt_into(txn, prefix))
}

impl ForeignFile {
    /// Saves a header for every tensor of the file, with `prefix` before its name, and leaves the elements in the
    /// file. Each storage that a tensor uses becomes an external storage of the store, a range of that file. Nothing is
    /// copied, whatever the size of the file, except for what the file holds in a different form: bytes and long plain
    /// values of a checkpoint, and long texts. The caller saves the [attributes](Self::attributes).
    ///
    /// The file must not change afterwards: see [`Transaction::adopt`]. A change right after the file was written can
    /// go unnoticed on a file system whose clock is coarser than 10 milliseconds (FAT: two seconds). A change by a
    /// program that had already mapped the file for writing can go unnoticed until the kernel has written its pages
    /// out.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] for elements that are compressed, not aligned, or must be byte-swapped; the errors of
    /// [`Transaction::adopt`] and [`Transaction::check_name`]. These errors occur before any header is saved.
    pub fn adopt_into(&self, txn: &mut Transaction<'_>, prefix: &str) -> Result<()> {
        self.check_adoptable()?;
        let mut adopt_all = || {
            let tensors: Vec<&ForeignTensor> = self.contents.tensors.iter().collect();
            let names = names_of(&tensors, prefix, txn)?;
            self.set_types(txn, (&tensors, &names))?;
            let used: BTreeSet<usize> = tensors.iter().map(|tensor| tensor.storage).collect();
            let mut keys = HashMap::new();
            for (index, storage) in self.contents.storages.iter().enumerate() {
                if used.contains(&index) {
                    let key = match &storage.conversion.bytes {
                        Some(bytes) => txn.stage(Some(storage.length_bytes), |sink| sink(bytes))?,
                        None => txn.adopt(storage.file.external(), storage.bytes_range())?,
                    };
                    keys.insert(index, key);
                }
            }
            for (tensor, name) in tensors.iter().zip(&names) {
                if let Some(&key) = keys.get(&tensor.storage) {
                    txn.save_header(name, &tensor.header, key)?;
                }
            }
            Ok(())
        };
        adopt_all().map_err(|e: Error| e.context(format_args!("adopt {}", self.path().display())))
    }

    /// Checks that [`adopt_into`](Self::adopt_into) can leave the elements in the file.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] for elements that are compressed, not aligned, or must be byte-swapped.
    pub fn check_adoptable(&self) -> Result<()> {
        let contents = &self.contents;
        for tensor in &contents.tensors {
            let Some(storage) = contents.storages.get(tensor.storage) else { continue };
            let Conversion { member: _, bytes, field, fields: _, swap_unit_bytes } = &storage.conversion;
            if !storage.is_range() && bytes.is_none() {
                let what = match (swap_unit_bytes, field) {
                    (2.., _) => "big-endian",
                    (_, Some(_)) => "not aligned in their structures",
                    _ => "compressed",
                };
                let message = format!(
                    "adopt {}: the elements of {:?} are {what}, so they cannot be used in place; import the file",
                    self.path().display(),
                    tensor.name
                );
                return Err(Error::new(ErrorKind::BadFile, message));
            }
        }
        Ok(())
    }
}
