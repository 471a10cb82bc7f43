use std::io;
use std::sync::Arc;

use super::{Disk, DiskFile, LockMode, Step};
use crate::process::OwnerProcess;

/// An open file that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: Arc<dyn DiskFile>,
    owner: OwnerProcess,
}

impl LockedFile {
    /// Locks a file, as this step of a protocol. Returns nothing when a lock of another open file excludes this one.
    pub(crate) fn try_lock(
        disk: &dyn Disk,
        step: Step,
        file: &Arc<dyn DiskFile>,
        mode: LockMode,
    ) -> io::Result<Option<Self>> {
        let is_locked = step.locks(disk, || file.try_lock(mode))?;
        Ok(is_locked.then(|| LockedFile { file: Arc::clone(file), owner: OwnerProcess::current() }))
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing the file is not enough: a forked child, or one that is being started, may have it open too.
        if self.owner.is_current() {
            let _ = self.file.unlock();
        }
    }
}
