//! Staged storages and headers over them, for importers of other formats.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use stridemap_format::limits::MAX_STORAGE_BYTES;
use stridemap_format::{Header, TensorRecord};

use super::staged_file::StagedFile;
use super::transaction::Transaction;
use super::write_elements::write_to_sink;
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::generation::{Change, Changes, OnExisting};
use crate::storage::{ExternalFile, OWN_STORAGE_BYTES, StagedStorage, StorageWriter};

/// The key of a storage that a [`Transaction`] has staged, for [`save_header`](Transaction::save_header) in the same
/// transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StorageKey {
    transaction: u64,
    /// The provisional id of the storage.
    id: u64,
    /// The bytes that were staged: where they begin in the storage, and their number.
    offset_bytes: u64,
    length_bytes: u64,
}

/// Imports storages: first the bytes, then headers over them. A storage is committed if a header refers to it, with all
/// bytes that share it.
impl Transaction<'_> {
    /// Stages bytes that `write` passes to its sink, in a sealed storage. If `size_bytes` states their number, disk
    /// space is reserved first, and fewer than 4 MiB are put into the storage that the small tensors of the transaction
    /// share, at a multiple of 64 bytes. Each storage is a file, and a model can have thousands of small ones.
    ///
    /// ```
    /// use stridemap::{DType, Header, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("points.smap");
    /// let store = Store::create(&path)?;
    /// let mut txn = store.begin()?;
    /// let points = [1f32, 4., 2., 1., 3., 5.];
    /// let key = txn.stage(Some(24), |sink| points.iter().try_for_each(|x| sink(&x.to_le_bytes())))?;
    /// txn.save_header("points", &Header::contiguous(DType::F32, &[3, 2])?, key)?;
    /// txn.save_header("points_t", &Header::new(DType::F32, [2, 3], [1, 2], 0)?, key)?;
    /// txn.commit()?;
    ///
    /// let (points, points_t) = (store.load("points")?, store.load("points_t")?);
    /// assert_eq!(points_t.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
    /// assert!(points.shares_storage(&points_t));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] for more or fewer bytes than stated; [`ErrorKind::LimitExceeded`] for more
    /// bytes than a storage can hold; [`ErrorKind::ReadOnly`]; [`ErrorKind::Io`]; those of `write`, of any type that a
    /// library error can be converted to. After an error the transaction can only be dropped.
    pub fn stage<E: From<Error> + fmt::Display>(
        &mut self,
        size_bytes: Option<u64>,
        write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<(), E>,
    ) -> Result<StorageKey, E> {
        self.check_writable("stage")?;
        let limit_bytes = size_bytes.unwrap_or(MAX_STORAGE_BYTES);
        if limit_bytes > MAX_STORAGE_BYTES {
            return Err(too_long(limit_bytes).into());
        }
        let (mut length_bytes, mut failure) = (0, None);
        let fill = |writer: &mut StorageWriter| {
            let start_bytes = writer.length_bytes();
            let sink = |bytes: &[u8]| {
                let end_bytes = (writer.length_bytes() - start_bytes).saturating_add(bytes.len() as u64);
                match size_bytes {
                    _ if end_bytes <= limit_bytes => writer.write(bytes),
                    Some(stated_bytes) => Err(mismatch(stated_bytes, end_bytes)),
                    None => Err(too_long(end_bytes)),
                }
            };
            write_to_sink(sink, |sink| {
                write(sink).map_err(|e| {
                    let told = Error::new(ErrorKind::InvalidArgument, format!("stage: {e}"));
                    failure = Some(e);
                    told
                })
            })?;
            length_bytes = writer.length_bytes() - start_bytes;
            match size_bytes {
                Some(stated_bytes) if stated_bytes != length_bytes => {
                    Err(mismatch(stated_bytes, length_bytes))
                }
                _ => Ok(()),
            }
        };
        let staged = match size_bytes {
            Some(size_bytes) if size_bytes < OWN_STORAGE_BYTES => self.stage_small(fill),
            _ => self.stage_own(None, size_bytes.unwrap_or(0), fill),
        };
        let staged = self.record_failure(staged).map_err(|e| failure.unwrap_or_else(|| e.into()));
        let (id, offset_bytes) = staged?;
        Ok(StorageKey { transaction: self.id, id, offset_bytes, length_bytes })
    }

    /// Stages a whole file as a sealed storage that shares the file's blocks on disk. Returns `None` if the file system
    /// cannot share them (btrfs and XFS can), or the file is too long for a storage. Later changes to the file do not
    /// affect the storage.
    ///
    /// The file is read once, to compute its digests. `progress` is called with the bytes read since the last call.
    ///
    /// ```
    /// use stridemap::import::ExternalFile;
    /// use stridemap::{DType, Header, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.bin");
    /// std::fs::write(&path, [7; 100])?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// let key = match txn.stage_shared(&ExternalFile::open(&path)?, &mut |_| ())? {
    ///     Some(key) => key,
    ///     None => txn.stage(Some(100), |sink| sink(&std::fs::read(&path).expect("it was written")))?,
    /// };
    /// txn.save_header("x", &Header::contiguous(DType::U8, &[100])?, key)?;
    /// txn.commit()?;
    /// assert_eq!(store.load("x")?.read::<u8>()?, [7; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ExternalChanged`] if the file changed since it was opened; those of [`stage`](Self::stage), after
    /// which the transaction can only be dropped.
    pub fn stage_shared(
        &mut self,
        file: &ExternalFile,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<StorageKey>> {
        self.check_writable("stage_shared")?;
        if file.size_bytes() > MAX_STORAGE_BYTES {
            return Ok(None);
        }
        let store = &self.loader.store;
        let durable = store.is_durable();
        let shared = StorageWriter::sharing(&store.disk, &store.paths, file, durable, progress);
        let shared = shared.and_then(|writer| writer.map(StorageWriter::finish).transpose());
        let shared = self.record_failure(shared)?;
        Ok(shared.map(|whole| self.key_of(whole)))
    }

    /// Stages a file that processes have filled, as a sealed storage. See [`StagedFile`]. The commit reads the file to
    /// digest it, and syncs it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the file was created by a handle that is not this one or a clone of it;
    /// [`ErrorKind::ReadOnly`]. The commit fails with [`ErrorKind::SizeMismatch`] if a process has changed the length of
    /// the file, and with [`ErrorKind::Io`] if it cannot be read.
    pub fn stage_file(&mut self, file: StagedFile) -> Result<StorageKey> {
        self.check_writable("stage_file")?;
        let (path, writer) = (file.path().to_path_buf(), file.into_writer(self.loader));
        let writer = writer.ok_or_else(|| {
            let message = format!(
                "stage_file {}: the file was created by another handle, so it is not staged, and deleted; create it by \
                 the handle of the transaction",
                path.display()
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        let length_bytes = writer.length_bytes();
        let id = Changes::provisional_id(self.staged.push_open(writer));
        Ok(StorageKey { transaction: self.id, id, offset_bytes: 0, length_bytes })
    }

    /// Stages a range of a file, in bytes, as an external storage. Nothing is copied or written.
    ///
    /// From then on the file must not change. The store records its path, inode, length and mtime. The path is relative
    /// to the directory that contains the store if the file is beneath that directory, and otherwise absolute. A tensor
    /// is loaded only while these are unchanged, by a handle that [may open the file](crate::StoreOptions::external).
    /// The file is not synced.
    ///
    /// ```
    /// use stridemap::import::ExternalFile;
    /// use stridemap::{DType, ExternalFiles, Header, StoreOptions};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.bin");
    /// std::fs::write(&path, b"head0123")?;
    /// let store = StoreOptions::new().external(ExternalFiles::Beside).create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// let key = txn.adopt(&ExternalFile::open(&path)?, 4..8)?;
    /// txn.save_header("digits", &Header::contiguous(DType::U8, &[4])?, key)?;
    /// txn.commit()?;
    /// assert_eq!(store.load("digits")?.read::<u8>()?, b"0123");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotAllowed`] if this handle may not open the file; [`ErrorKind::ExternalChanged`] if the
    /// file changed since it was opened; [`ErrorKind::OutOfRange`] for a range outside the file;
    /// [`ErrorKind::InvalidArgument`] for a path that is not UTF-8; [`ErrorKind::Io`]. After an error the transaction
    /// is unchanged.
    pub fn adopt(&mut self, file: &ExternalFile, range: Range<u64>) -> Result<StorageKey> {
        self.check_writable("adopt")?;
        file.check_range(&range)?;
        // A file can hold very many storages, so it is not opened again for each.
        let (path, file) = self.loader.store.externals.adopt(file, self.adopted.take())?;
        self.adopted = Some((path.clone(), Arc::clone(&file)));
        let disk = &self.loader.store.disk;
        let length_bytes = range.end - range.start;
        Ok(self.key_of(StagedStorage::external(disk, (path, &file), range.start, length_bytes)))
    }

    /// Saves a tensor: a header over a storage that this transaction has staged. Saving under an existing name
    /// replaces that tensor.
    ///
    /// ```
    /// # use stridemap::{DType, Header, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// let key = txn.stage(None, |sink| sink(&[1, 2, 3, 4]))?;
    /// txn.save_header("backwards", &Header::new(DType::U8, [4], [-1], 3)?, key)?;
    /// assert!(txn.save_header("too long", &Header::contiguous(DType::U8, &[5])?, key).is_err());
    /// txn.commit()?;
    /// assert_eq!(store.load("backwards")?.read::<u8>()?, [4, 3, 2, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for elements outside the storage; [`ErrorKind::InvalidArgument`] for a key of a
    /// different transaction; those of [`check_name`](Self::check_name).
    pub fn save_header(&mut self, name: &str, header: &Header, storage: StorageKey) -> Result<()> {
        if storage.transaction != self.id {
            let message = format!("save_header {name:?}: another transaction staged the storage");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        header.extent(storage.length_bytes).refused_to(format_args!("save_header {name:?}"))?;
        let first_elem = storage.offset_bytes as usize / header.dtype().itemsize();
        let offset = first_elem.saturating_add(header.storage_offset());
        let header = header.clone().with_storage_offset(offset).into();
        let record = TensorRecord { header, storage_id: storage.id };
        self.apply(Change::Put { action: "save", name: name.to_owned(), record })
    }

    /// Checks that a save under this name would be accepted. An importer can check all names before it writes
    /// gigabytes.
    ///
    /// ```
    /// use stridemap::{OnExisting, Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &Tensor::from_vec(vec![1f32], &[1])?)?;
    /// let mut txn = store.begin()?;
    /// assert!(txn.check_name("x").is_ok() && txn.check_name("").is_err());
    /// txn.on_existing(OnExisting::Refuse);
    /// assert!(txn.check_name("x").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an invalid name; [`ErrorKind::NameExists`] after
    /// [`OnExisting::Refuse`](crate::OnExisting::Refuse).
    pub fn check_name(&self, name: &str) -> Result<()> {
        self.draft.check_new("save", name, self.on_existing_or(OnExisting::Replace))
    }

    /// Stages a finished storage, and returns a key for all of its bytes.
    fn key_of(&mut self, finished: StagedStorage) -> StorageKey {
        let length_bytes = finished.record().length_bytes;
        let id = self.stage_finished(finished);
        StorageKey { transaction: self.id, id, offset_bytes: 0, length_bytes }
    }
}

pub(super) fn too_long(length_bytes: u64) -> Error {
    let message = format!("stage: {length_bytes} bytes, but a storage holds at most {MAX_STORAGE_BYTES}");
    Error::new(ErrorKind::LimitExceeded, message)
}

fn mismatch(stated_bytes: u64, bytes: u64) -> Error {
    let message = format!("stage: {stated_bytes} bytes were stated, but {bytes} were written");
    Error::new(ErrorKind::SizeMismatch, message)
}
