//! The elements of files in other formats.

use std::sync::{Arc, PoisonError, Weak};

use stridemap::import::ExternalFile;
use stridemap::{Error, ErrorKind, Result, Source as _, Tensor};

use super::contents::ForeignTensor;
use super::foreign::ForeignFile;
use super::foreign_storage::ForeignStorage;

impl ForeignFile {
    /// Returns a tensor whose storage is a range of the file. No element is read. Tensors that share a storage in the
    /// file share it here too.
    ///
    /// As an exception, elements that are compressed or big-endian are converted into an
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
        let Some(storage) = self.storage(id) else {
            let (path, count) = (self.path().display(), self.contents.storages.len());
            let message = format!("verify {path}: it has {count} storages, and none has the number {id}");
            return Err(Error::new(ErrorKind::OutOfRange, message));
        };
        storage.read(0..storage.length_bytes, &mut |bytes| {
            progress(bytes.len() as u64);
            Ok(())
        })?;
        Ok(storage.has_checksum())
    }

    /// Returns whether the file has a checksum of the storage with this number, so that
    /// [`verify_storage`](Self::verify_storage) finds a changed byte. False for a number that no storage has.
    #[must_use]
    pub fn has_checksum(&self, id: u64) -> bool {
        self.storage(id).is_some_and(ForeignStorage::has_checksum)
    }

    fn storage(&self, id: u64) -> Option<&ForeignStorage> {
        let index = id.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.contents.storages.get(index))
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
}
