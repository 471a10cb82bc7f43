use std::path::Path;

use super::handle::Store;
use super::options::StoreOptions;
use crate::commit::{self, Repair, RepairMode, Verification};
use crate::error::Result;

impl Store {
    /// Reads everything in the generation that this handle is on, metadata and elements, and reports what breaks a rule of
    /// the format, with the names of the tensors that each finding affects. `progress` is called with the bytes of elements
    /// read since the last call, on this thread; several others read, some MiB at a time.
    ///
    /// Mutable and live storages have no digests, for they change: their files are looked at, and not read. The same holds
    /// for external files: each must be the one that was adopted. One that this handle may not open is left alone, and is
    /// listed in [`Verification::unchecked_files`].
    ///
    /// A store that is too damaged to be opened is verified by [`StoreOptions::verify`].
    ///
    /// ```
    /// use stridemap::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("x.smap");
    /// let store = Store::create(&path)?;
    /// store.save("x", &[1f32, 2.])?;
    /// let verified = store.verify(|_| ())?;
    /// assert!(verified.is_whole());
    /// assert_eq!(verified.read_bytes, 8);
    ///
    /// std::fs::write(path.join("storages/0000000000000001.bin"), [0; 8])?;
    /// let verified = store.verify(|_| ())?;
    /// assert!(verified.findings[0].affected.contains("x"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Io` for metadata that cannot be read, and `Busy` as in [`open`](Self::open).
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Verification> {
        let history = &self.loader.history;
        history.check_process()?;
        commit::verify(history, self.snapshot().inner(), &mut progress)
    }

    /// As [`verify`](Self::verify), for some tensors alone: reads the entries that lead to each, all digests of its storage,
    /// some 16 bytes for each MiB, and the chunks of 1 MiB that its elements are in.
    ///
    /// A finding on the digests of a storage may be about another tensor of it: only `verify` reads enough to say.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1f32, 2.])?;
    /// assert!(store.verify_tensors(&["x"], |_| ())?.is_whole());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound`; `ExternalRefused` for one on a file that this handle may not open; `Io`.
    pub fn verify_tensors(&self, names: &[&str], mut progress: impl FnMut(u64)) -> Result<Verification> {
        let history = &self.loader.history;
        history.check_process()?;
        let mut read_bytes = 0;
        let findings = commit::verify_tensors(history, self.snapshot().inner(), names, &mut |bytes| {
            read_bytes += bytes;
            progress(bytes);
        })?;
        Ok(Verification { findings, read_bytes, ..Verification::default() })
    }
}

impl StoreOptions {
    /// As [`Store::verify`], of the newest generation of the store in a directory. One that is too damaged to be opened has
    /// findings, too.
    ///
    /// ```
    /// use stridemap::{Store, StoreOptions};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("x.smap");
    /// Store::create(&path)?.save("x", &[1f32, 2.])?;
    /// std::fs::write(path.join("meta/0000000000000002.man"), "no manifest")?;
    /// assert!(Store::open(&path).is_err());
    /// let verified = StoreOptions::new().verify(&path, |_| ())?;
    /// assert!(verified.findings[0].affected.contains("x"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`, `Busy`, `Io`: what is there may be no store, or cannot be read.
    pub fn verify(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Verification> {
        commit::verify_path(&self.disk, path.as_ref(), self.options, &mut progress)
    }

    /// Says what a damaged store needs to be usable again, and what of it would be given up; changes nothing. Nothing at all,
    /// for a whole store. `progress` is called with the bytes of elements read since the last call.
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`; `UnsupportedVersion` for a store of a newer version; `Corrupt` when neither a manifest nor a
    /// table can be read, or a directory of the store is none; `LimitExceeded` for a file of a generation that no store comes
    /// to; `Io`.
    pub fn plan_repair(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Repair> {
        commit::repair(&self.disk, path.as_ref(), self.options, RepairMode::Plan, &mut progress)
    }

    /// Makes a damaged store usable again, and says what it did. Then [`verify`](Self::verify) finds nothing, but for files
    /// that are not the store's, and the next commit succeeds.
    ///
    /// - FORMAT and LOCK are made anew. A manifest, and an entry of a table, that one flipped bit makes wrong is put right:
    ///   its checksum confirms it. So are the header of a table, and wrong or missing chunk digests that those of the record
    ///   confirm.
    /// - When the newest manifest, or its table, cannot be read, the store steps back to the newest older generation whose
    ///   can, which is there while a reader is on it or was until now; else to what the manifest says alone, or a table.
    /// - A tensor is given up when its header is lost, or when it reaches a chunk that is damaged or missing. The others
    ///   on a damaged storage are copied into a new one, and keep names, sizes and elements; strides and offsets may change. A
    ///   mutable or live storage that became short keeps the tensors that are inside what is left.
    ///
    /// What it removes or replaces is moved to the directory `lost+found` of the store, and stays there. It is made under the
    /// writers' lock, and durable when it returns, whatever the [`Durability`](crate::Durability). Cut short anywhere, even by
    /// a power cut, the store is as before, or repaired, or another repair makes it so.
    ///
    /// It keeps all headers in memory, and needs room on the disk for what is copied.
    ///
    /// # Errors
    /// Those of [`plan_repair`](Self::plan_repair); `Busy` while another writer is at work, or while a reader needs what would
    /// be moved; `ReadOnly`, `Io`. Until the new generation is published the content is as it was.
    pub fn repair(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Repair> {
        commit::repair(&self.disk, path.as_ref(), self.options, RepairMode::Apply, &mut progress)
    }
}
