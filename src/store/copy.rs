//! Copying a store while others may write it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::handle::Store;
use super::snapshot::Snapshot;
use crate::error::Result;
use crate::maintenance::{Copied, Original};

impl Store {
    /// Copies the newest generation of this store to a path that does not exist; see [`Snapshot::copy_to`]. The
    /// handle stays on its generation.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1i64, 2])?;
    /// let copied = store.copy_to(dir.path().join("backup.smap"), |_| ())?;
    /// assert_eq!(copied.tensor_count, 1);
    /// assert_eq!(Store::open(dir.path().join("backup.smap"))?.names()?, ["x"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`, `Corrupt`, `Busy`, `Interrupted`, `NotAllowed`, `ExternalChanged`, `ReadOnly` and `Io`, as for
    /// [`Snapshot::copy_to`]; `Stale`, as for [`refresh`](Self::refresh).
    pub fn copy_to(&self, path: impl AsRef<Path>, progress: impl FnMut(u64)) -> Result<Copied> {
        let newest = self.loader.store.newest()?;
        Snapshot::new(Arc::clone(&self.loader), newest).copy_to(path, progress)
    }
}

impl Snapshot {
    /// Copies this generation to a path that does not exist. Other processes may read and write the store meanwhile.
    /// The copy is a store with its own uuid. It appears whole or not at all, and is as durable as the handle's
    /// commits when this returns. A process that is killed leaves a directory beside the path, named `.stage-` and a
    /// hexadecimal number, which may be deleted.
    ///
    /// Copying only the files, with `cp -r`, is not safe while a process writes: it copies files of several
    /// generations, and the result often does not open. It also keeps the uuid, so each of the two stores is mistaken
    /// for the other.
    ///
    /// Names, strides, dimension names, attributes and reservations are kept. Tensors that share a storage also share
    /// it in the copy.
    /// - Sealed storages share their blocks with the originals if the file system can do that (btrfs, XFS), and are
    ///   copied otherwise. All their bytes are read and verified, so damage is an error here and does not get into
    ///   the copy.
    /// - Mutable storages are copied in their current state, each under a shared guard. Live ones are copied by
    ///   positional reads while others write, so an element may be half of one write and half of another. A snapshot
    ///   isolates neither kind.
    /// - External storages are adopted again: the copy records the paths of their files as seen from its own
    ///   location. This handle must be [allowed](crate::StoreOptions::external) to open them from there.
    ///
    /// `progress` is called with the bytes of elements read since the last call.
    ///
    /// ```
    /// use stridemap::{Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path();
    /// let store = Store::create(dir.join("x.smap"))?;
    /// store.save("x", &Tensor::from_vec(vec![1i64, 2], &[2])?)?;
    /// store.copy_to(dir.join("copy.smap"), |_| ())?;
    /// assert_eq!(Store::open(dir.join("copy.smap"))?.load("x")?.read::<i64>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists` if the path exists; `Corrupt` for damaged metadata and elements; `Busy` if a mutable tensor is
    /// locked for longer than the lock timeout, or by this thread; `Interrupted` if a writer ended in the middle of a
    /// change ([`StoreOptions::salvage`](crate::StoreOptions::salvage) copies the elements as they are); `NotAllowed`
    /// and `ExternalChanged`; `Io`, for example for a full disk; `ReadOnly`; `Stale`. After each of these nothing is
    /// left behind, unless the last sync failed.
    pub fn copy_to(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Copied> {
        Ok(self.original()?.copy(path.as_ref(), &mut progress)?.copied)
    }

    /// Like [`copy_to`](Self::copy_to), for the given tensors only. Sealed storages are copied without the bytes that
    /// a [compaction](Store::compact) would drop if the store had only these tensors, so strides and offsets may
    /// change. Other storages are copied whole. The attributes of the store, of these tensors, and of prefixes of
    /// their names are kept.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("model", &vec![[1f32; 100]; 1000])?;
    /// store.save_view("column", &store.load("model")?.select(1, 0)?)?;
    /// let part = dir.path().join("part.smap");
    /// let copied = store.snapshot().copy_tensors_to(&part, &["column"], |_| ())?;
    /// assert!(copied.copied_bytes < 5000); // of 400 000
    /// assert_eq!(Store::open(&part)?.load("column")?.size(), [1000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`, `Corrupt`, `Busy`, `Interrupted`, `NotAllowed`, `ExternalChanged`, `ReadOnly`, `Stale` and `Io`,
    /// as for [`copy_to`](Self::copy_to); `NameNotFound`.
    pub fn copy_tensors_to(
        &self,
        path: impl AsRef<Path>,
        names: &[&str],
        mut progress: impl FnMut(u64),
    ) -> Result<Copied> {
        Ok(self.original()?.copy_tensors(path.as_ref(), names, &mut progress)?.copied)
    }

    fn original(&self) -> Result<Original<'_>> {
        let (disk, store) = (&self.loader.disk, &self.loader.store);
        store.check_process()?;
        let generation = self.pinned_generation();
        Ok(Original {
            action: "copy",
            disk,
            store,
            generation,
            damaged: BTreeMap::new(),
            allows_interrupted: false,
        })
    }
}
