//! Live storages.

use super::in_place::{InPlaceFile, MAY_NEED_BLOCKS};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::map::mapping::LiveMapping;
use crate::storage::open_file::MapError;

/// The file of a live storage. Any process may change it at any time, with atomics of one size.
#[derive(Debug)]
pub(crate) struct LiveFile {
    in_place: InPlaceFile,
    access_bytes: u8,
}

impl LiveFile {
    pub(in crate::storage) fn new(in_place: InPlaceFile, access_bytes: u8) -> Self {
        LiveFile { in_place, access_bytes }
    }

    pub(in crate::storage) fn in_place(&self) -> &InPlaceFile {
        &self.in_place
    }

    /// Whether both are the same storage.
    pub(crate) fn is_same(&self, other: &LiveFile) -> bool {
        self.in_place.is_same(&other.in_place)
    }

    /// Returns the size of every access.
    pub(crate) fn access_bytes(&self) -> u8 {
        self.access_bytes
    }

    /// Maps the file, or shares an existing mapping of this process.
    ///
    /// # Errors
    /// `Unsupported` if mapping is not permitted or not possible; `ReadOnly`, `Stale` and `Conflict` as for an
    /// exclusive lock; `Corrupt` for a file that is too short, or that this process uses as a storage of a
    /// different kind; `Io`.
    pub(crate) fn map(&self) -> Result<LiveMapping> {
        let own = &self.in_place;
        own.check_process()?;
        let not_mapped =
            |why: &str| Error::new(ErrorKind::Unsupported, format!("{}: {why}", own.path.display()));
        let permit = own.permit.ok_or_else(|| {
            not_mapped(
                "live elements are shared in memory, and the store is not mapped; open it with open_mapped",
            )
        })?;
        let file = own.open_to_write()?;
        own.check_changeable(&file)?;
        let os_file = file.as_file().ok_or_else(|| not_mapped("a simulated file cannot be mapped"))?;
        let stat = own.stat_to_map(&file)?;
        if !own.allocate_blocks(&file)? {
            return Err(not_mapped(MAY_NEED_BLOCKS));
        }
        LiveMapping::of(os_file, stat, own.length_bytes, self.access_bytes, permit).map_err(|e| match e {
            MapError::Unsupported => not_mapped(
                "the file system does not support shared mappings; keep the store on a different one",
            ),
            e => e.into_error(&own.path),
        })
    }

    /// Makes all writes to it durable.
    ///
    /// # Errors
    /// `Io`; `Poisoned`; `Stale` in a child of the process that loaded it: the kernel reports a failure only once,
    /// and the parent must not miss it.
    pub(crate) fn sync(&self) -> Result<()> {
        self.in_place.check_process()?;
        self.in_place.sync(&[])
    }
}
