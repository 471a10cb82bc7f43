//! The directory of a store.

use std::sync::Arc;

use stridemap_format::Uuid;

use crate::disk::{Disk, OwnerProcess, StorePaths};
use crate::error::Result;

/// The directory of a store, which its `FORMAT` has shown to be one, and the process that opened it.
#[derive(Clone, Debug)]
pub(crate) struct StoreDir {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) paths: StorePaths,
    pub(crate) uuid: Uuid,
    owner: OwnerProcess,
}

impl StoreDir {
    pub(crate) fn new(disk: Arc<dyn Disk>, paths: StorePaths, uuid: Uuid) -> Self {
        StoreDir { disk, paths, uuid, owner: OwnerProcess::current() }
    }

    /// Checks that this process opened the store. Must come before anything else: a forked child shares its parent's
    /// locks, and could wait forever for a mutex that another thread of the parent had locked.
    ///
    /// # Errors
    /// `Stale` in a forked child of the process that opened the store.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.owner.check(|| format!("{}: the store was opened", self.paths.root().display()))
    }
}
