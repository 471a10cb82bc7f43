//! Opens a store whose files are not in a file system.

use std::sync::Arc;

use super::files::Files;
use super::files_disk::FilesDisk;
use crate::disk::{Disk, StorePaths};
use crate::error::Result;
use crate::generation::{self, OpenStore, StoreDir};
use crate::store::at::find;
use crate::store::{Store, StoreOptions};

impl StoreOptions {
    /// Opens a store whose files are not in a file system, to read it. `location` stands in messages where the path of the
    /// store would, as in `s3://bucket/model.smap`. The handle stays on the newest generation, or on the one that
    /// [`at`](Self::at) names. Elements are copied out by reads of the files, and cannot be borrowed.
    ///
    /// Each file is opened when it is first needed, and of the tables only the nodes that a lookup needs are read. What
    /// does not work:
    /// - Every write fails with [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly). To change a copy, copy it with
    ///   [`Snapshot::copy_to`](crate::Snapshot::copy_to) or [`Store::copy_with_tags`].
    /// - [`Store::wait_for_change`] and [`Store::disk_usage`] fail with
    ///   [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    /// - External storages fail with [`ErrorKind::NotAllowed`](crate::ErrorKind::NotAllowed): their files are on the
    ///   machine where they were adopted.
    /// - In a forked child, all reads fail with [`ErrorKind::Stale`](crate::ErrorKind::Stale).
    ///
    /// ```
    /// # use std::{collections::BTreeMap, io, sync::Arc};
    /// # use stridemap::replica::{FileReader, Files};
    /// # use stridemap::{ErrorKind, StoreOptions};
    /// #[derive(Debug)]
    /// struct Nothing;
    ///
    /// impl Files for Nothing {
    ///     fn list(&self, _: &str) -> io::Result<Vec<String>> {
    ///         Ok(Vec::new())
    ///     }
    ///
    ///     fn open(&self, _: &str) -> io::Result<Arc<dyn FileReader>> {
    ///         Err(io::ErrorKind::NotFound.into())
    ///     }
    /// }
    ///
    /// let refused = StoreOptions::new().open_files(Arc::new(Nothing), "s3://bucket/x.smap").unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::NotAStore);
    /// assert!(refused.to_string().contains("s3://bucket/x.smap"));
    /// ```
    ///
    /// # Errors
    /// `NotAStore`, `UnsupportedVersion`, `Corrupt` and `Io`, as for [`open`](Self::open); for a handle
    /// [at](Self::at) a generation also `NameNotFound` and `Conflict`, as for [`Store::at`]. An
    /// [`Error`](crate::Error) inside an error of `files` keeps its kind.
    pub fn open_files(self, files: Arc<dyn Files>, location: &str) -> Result<Store> {
        let paths = StorePaths::of_location(location);
        let disk: Arc<dyn Disk> = Arc::new(FilesDisk::new(files, paths.clone()));
        let uuid = generation::check_store(&*disk, &paths)?;
        let store = OpenStore::open(StoreDir::new(disk, paths, uuid), self.options)?;
        let generation = self.at.as_ref().map_or_else(|| Ok(store.current()), |at| find(&store, at))?;
        Ok(Store::new(self.disk, store.fixed_at(generation), None))
    }
}
