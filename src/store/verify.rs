//! Verification and repair of a store.

use std::path::Path;

use super::handle::Store;
use super::options::StoreOptions;
use crate::error::Result;
use crate::maintenance::{self, Repair, Verification};

impl Store {
    /// Reads all metadata and elements of the generation that this handle is on, and reports a finding for each broken
    /// rule of the format, with the tensors that it affects. An undamaged store has no findings. Other threads read the
    /// elements, several MiB at a time. `progress` is called on this thread, with the bytes of elements read since the
    /// last call.
    ///
    /// If an entry of a table cannot be read, the name of its tensor is unknown and not in the finding.
    ///
    /// External files have no digests: each is compared with the stamp that was recorded when it was adopted, and its
    /// elements are not read. A file that this handle may not open is skipped, and listed in
    /// [`Verification::unchecked_files`]. Mutable and live storages change, so they have no digests either: only the
    /// length of their files is checked.
    ///
    /// To verify a store that is too damaged to open, use [`StoreOptions::verify`].
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
    /// `Io` if a file cannot be read twice in a row, which says nothing about its bytes; `Busy` as in
    /// [`open`](Self::open).
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Verification> {
        let store = &self.loader.store;
        store.check_process()?;
        maintenance::verify(store, self.snapshot().pinned_generation(), &mut progress)
    }

    /// Verifies only the given tensors, and reports what is wrong with them. Reads the table entries that are needed to
    /// find them, all digests of their storages (16 bytes per MiB), and the chunks of 1 MiB that contain their
    /// elements.
    ///
    /// A finding about the digests of a storage lists these tensors, although the damage may affect only other tensors.
    /// [`verify`](Self::verify) reads all chunks, and so lists the right tensors.
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
    /// `NameNotFound`; `NotAllowed` for a tensor in a file that this handle may not open; `Io`.
    pub fn verify_tensors(&self, names: &[&str], mut progress: impl FnMut(u64)) -> Result<Verification> {
        let store = &self.loader.store;
        store.check_process()?;
        let mut read_bytes = 0;
        let findings =
            maintenance::verify_tensors(store, self.snapshot().pinned_generation(), names, &mut |bytes| {
                read_bytes += bytes;
                progress(bytes);
            })?;
        Ok(Verification { findings, read_bytes, ..Verification::default() })
    }
}

impl StoreOptions {
    /// Like [`Store::verify`], for the newest generation of the store in a directory. Damage that prevents opening
    /// the store is reported as findings, too.
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
    /// `NotFound`; `NotAStore`; `Busy` as in [`open`](Self::open); `Io` as in [`Store::verify`].
    pub fn verify(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Verification> {
        maintenance::verify_path(&self.disk, path.as_ref(), self.options, &mut progress)
    }

    /// Returns what [`repair`](Self::repair) would do and what would be lost, and changes nothing. The plan for an
    /// undamaged store is empty. `progress` is called with the bytes of elements read since the last call.
    ///
    /// ```
    /// # use stridemap::{Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// Store::create(&path)?.save("x", &[1f32, 2.])?;
    /// std::fs::write(path.join("storages/0000000000000001.bin"), [0; 8])?;
    /// let plan = StoreOptions::new().plan_repair(&path, |_| ())?;
    /// assert_eq!(plan.losses[0].names, ["x"]);
    /// assert!(Store::open(&path)?.contains("x")?); // nothing has changed
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`; `UnsupportedVersion` for a store of a newer version; `Corrupt` if no manifest can be
    /// read, or if `meta` or `storages` is not a directory; `LimitExceeded` for a file whose generation number no
    /// store can reach; `Io`.
    pub fn plan_repair(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Repair> {
        maintenance::plan_repair(&self.disk, path.as_ref(), &mut progress)
    }

    /// Makes a damaged store usable again, and returns what was done and what was lost. Afterwards
    /// [`verify`](Self::verify) finds only damage to external files, and the next commit succeeds.
    ///
    /// Nothing is guessed: whatever has a checksum, and is not confirmed by it, is lost and reported.
    ///
    /// - FORMAT and LOCK are written again if they are damaged or missing. Wrong or missing chunk digests are computed
    ///   again from the chunks. They are used only if they match the record.
    /// - If the newest manifest or its table cannot be read, the store steps back to the newest generation that can
    ///   be read. Older generations stay on disk only while a reader uses them. If no generation has a readable table,
    ///   the newest readable manifest is kept without its table. Without a readable manifest, repair refuses.
    /// - A damaged entry of a table is lost, and the others are kept.
    /// - A tensor is lost if its header or the record of its storage is lost, or if it reaches a chunk that is
    ///   damaged or missing. The other tensors on a damaged storage are copied into a new one, and keep their names,
    ///   sizes and elements; strides and offsets may change. A mutable or live storage whose file is short keeps the
    ///   tensors that are entirely in what is left.
    ///
    /// Files that are removed or replaced are moved to the `lost+found` directory of the store, and stay there. A
    /// repair holds the writers' lock, and is durable when it returns, whatever the
    /// [`Durability`](crate::Durability). If it is interrupted, even by a power cut, the store is unchanged or
    /// repaired, or a second repair completes it.
    ///
    /// A repair keeps all headers in memory, and needs disk space for the storages that it copies.
    ///
    /// ```
    /// # use stridemap::{Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.smap");
    /// let store = Store::create(&path)?;
    /// store.save("x", &[1f32, 2.])?;
    /// store.save("y", &[3f32])?;
    /// drop(store);
    /// std::fs::write(path.join("storages/0000000000000001.bin"), [0; 8])?;
    /// let repair = StoreOptions::new().repair(&path, |_| ())?;
    /// assert_eq!(repair.losses[0].names, ["x"]);
    /// assert_eq!(Store::open(&path)?.load("y")?.read::<f32>()?, [3.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`plan_repair`](Self::plan_repair); `Busy` while another writer is active, or while a reader needs a
    /// file that would be moved; `CommitUnknown` if the new generation may or may not have been published;
    /// `ReadOnly`, `Io`. Until the new generation is published, the content is unchanged.
    pub fn repair(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Repair> {
        maintenance::repair(&self.disk, path.as_ref(), self.options, &mut progress)
    }
}
