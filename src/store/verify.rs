//! Verification and salvage of a store.

use std::path::Path;

use super::handle::Store;
use super::options::StoreOptions;
use crate::error::Result;
use crate::maintenance::{self, Salvaged, Verification};

impl Store {
    /// Reads all metadata and elements of the generation that this handle is on, and reports a finding for each broken
    /// rule of the format, with the tensors that it affects. An undamaged store has no findings. Other threads read the
    /// elements, several MiB at a time. `progress` is called on this thread, with the bytes of elements read since the
    /// last call.
    ///
    /// What the [tags](Self::tags) of the newest generation keep is verified too. A finding there names the tags that lose
    /// something, and says nothing about the tensors of this generation. A handle that was opened
    /// [at](StoreOptions::at) a generation verifies only this one.
    ///
    /// If an entry of a table cannot be read, the name of its tensor is unknown and not in the finding. The same is true of
    /// tags.
    ///
    /// External files have no digests: each is compared with the stamp that was recorded when it was adopted, and its
    /// elements are not read. A file that this handle may not open is skipped, and listed in
    /// [`Verification::unchecked_files`]. Mutable and live storages change, so they have no digests either: only the
    /// length of their files is checked. Tensors of which a change was [interrupted](crate::Tensor::allow_interrupted) are
    /// listed in [`Verification::interrupted`].
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
    /// assert!(verified.findings[0].affects("x"));
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
        maintenance::verify_tensors(store, self.snapshot().pinned_generation(), names, &mut progress)
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
    /// assert!(verified.findings[0].affects("x"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `NotAStore`; `Busy` as in [`open`](Self::open); `Io` as in [`Store::verify`].
    pub fn verify(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Verification> {
        maintenance::verify_path(&self.disk, path.as_ref(), self.options, &mut progress)
    }

    /// Copies what is whole in a damaged store to a new store at a path that does not exist, and returns what was copied
    /// and what is lost. The damaged store is only read: no file in it changes, and it may be on a read-only file system.
    /// If `new_path` is `None`, nothing is made. `progress` is called with the bytes of elements read since the last call.
    ///
    /// Nothing is guessed: whatever has a checksum, and is not confirmed by it, is lost and reported.
    ///
    /// - The newest generation that can be read is copied: if need be, one that a tag keeps. If its table is damaged,
    ///   the entries of a damaged leaf are lost, and the others are kept. If no generation has a usable table, the
    ///   newest manifest is read without its table. Without a readable manifest, a salvage fails. FORMAT and LOCK are
    ///   not needed.
    /// - A tensor is lost if its header or the record of its storage is lost, or if it reaches a chunk that is damaged or
    ///   missing. A tensor made by [`create_growable`](crate::Store::create_growable) keeps its rows before that chunk.
    ///   The other tensors on a damaged storage are copied without the bytes that only lost tensors reach, so strides and
    ///   offsets may change.
    /// - A mutable tensor of which a change was [interrupted](crate::Tensor::allow_interrupted) is copied as it is, and
    ///   listed in [`Salvaged::interrupted`]. The new store says so, too, when the tensor is read or locked.
    /// - Wrong or missing chunk digests are computed again from the chunks, and used only if they match the record.
    /// - No [tag](crate::Store::tags) is copied, nor what only other tagged generations have. [`Salvaged::tags`] lists the
    ///   tags.
    /// - Everything else is as in a [copy](crate::Snapshot::copy_to): tensors that share a storage still share it, mutable,
    ///   live and external storages keep their kind, all attributes are kept, whole storages share their blocks with the
    ///   originals if the file system can do that, and the new store has a uuid of its own. It appears whole or not at
    ///   all.
    ///
    /// An external file that this handle may not open, or that has changed, counts as lost. So does one that the new
    /// store may not open from its own path, which is known only if it is made.
    ///
    /// A file that could not be read is not damaged: it is read once more, and then its error is returned. The exception
    /// is an error of the disk or the file system (EIO, EUCLEAN), which would not go away: what cannot be read is lost,
    /// with that error as the reason.
    ///
    /// All headers are in memory during a salvage, and each byte is read twice.
    ///
    /// ```
    /// # use stridemap::{Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let (path, new) = (dir.path().join("x.smap"), dir.path().join("new.smap"));
    /// let store = Store::create(&path)?;
    /// store.save("x", &[1f32, 2.])?;
    /// store.save("y", &[3f32])?;
    /// std::fs::write(path.join("storages/0000000000000001.bin"), [0; 8])?;
    /// let salvaged = StoreOptions::new().salvage(&path, Some(&new), |_| ())?;
    /// let loss = &salvaged.losses[0];
    /// assert_eq!((loss.name.as_deref(), loss.lost_bytes), (Some("x"), 8));
    /// assert_eq!(Store::open(&new)?.load("y")?.read::<f32>()?, [3.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `NotAStore`; `UnsupportedVersion` for a store of a newer version; `Corrupt` if no manifest is
    /// whole, or if `meta`, `generations` or `storages` is not a directory; `AlreadyExists` if the new path exists;
    /// `InvalidArgument` if it is inside the damaged store; those of [`Snapshot::copy_to`](crate::Snapshot::copy_to),
    /// except `Interrupted`. After each of these nothing is left behind, except after `CommitUnknown`.
    pub fn salvage(
        &self,
        path: impl AsRef<Path>,
        new_path: Option<&Path>,
        mut progress: impl FnMut(u64),
    ) -> Result<Salvaged> {
        maintenance::salvage(&self.disk, path.as_ref(), new_path, self.options, &mut progress)
    }
}
