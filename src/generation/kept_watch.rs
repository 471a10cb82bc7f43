//! The last watch of this process, kept for the next wait because the kernel is slow to close a watch. Watches per
//! user are limited, so one is kept for the whole process, not one per handle.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::disk::{Disk, OwnerProcess, Watch};

struct Idle {
    /// A weak reference, so that it does not keep the disk alive.
    disk: Weak<dyn Disk>,
    dir: PathBuf,
    watch: Box<dyn Watch>,
    /// A forked child would take its parent's notifications.
    owner: OwnerProcess,
}

/// Locked with `try_lock` only: in a forked child it may stay locked forever.
static IDLE: Mutex<Option<Idle>> = Mutex::new(None);

/// Returns a watch of a directory that reports changes from this call on, or `None` if the system has no watches
/// left.
pub(crate) fn watch(disk: &Arc<dyn Disk>, dir: &Path) -> Option<Box<dyn Watch>> {
    let is_ours = |idle: &mut Idle| {
        Weak::ptr_eq(&idle.disk, &Arc::downgrade(disk)) && idle.dir == dir && idle.owner.is_current()
    };
    let idle = IDLE.try_lock().ok().and_then(|mut idle| idle.take_if(is_ours));
    match idle {
        Some(Idle { watch, .. }) if watch.wait(Duration::ZERO).is_ok() => Some(watch),
        _ => disk.watch(dir).ok().flatten(),
    }
}

/// Keeps a watch for the next wait.
pub(crate) fn keep(disk: &Arc<dyn Disk>, dir: PathBuf, watch: Box<dyn Watch>) {
    let idle = Idle { disk: Arc::downgrade(disk), dir, watch, owner: OwnerProcess::current() };
    let replaced = IDLE.try_lock().map(|mut slot| slot.replace(idle));
    // Closed after the mutex is unlocked, because closing is slow.
    drop(replaced);
}
