//! The watch of whoever waited last in this process. To end one takes the kernel longer than to begin it, so it is kept for
//! the next wait; and it gives a user only so many, so it is one a process, and not one a handle.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::disk::{Disk, Watch};
use crate::process::OwnerProcess;

struct Idle {
    /// Not kept open by this.
    disk: Weak<dyn Disk>,
    dir: PathBuf,
    watch: Box<dyn Watch>,
    /// A forked child would take the notifications of its parent.
    owner: OwnerProcess,
}

/// Never waited for: in a forked child, nobody might be left to give it back.
static IDLE: Mutex<Option<Idle>> = Mutex::new(None);

/// A watch of a directory that tells of nothing before this call; none where the system has none to give.
pub(super) fn watch(disk: &Arc<dyn Disk>, dir: &Path) -> Option<Box<dyn Watch>> {
    let is_ours = |idle: &mut Idle| {
        Weak::ptr_eq(&idle.disk, &Arc::downgrade(disk)) && idle.dir == dir && idle.owner.is_current()
    };
    let idle = IDLE.try_lock().ok().and_then(|mut idle| idle.take_if(is_ours));
    match idle {
        Some(Idle { watch, .. }) if watch.wait(Duration::ZERO).is_ok() => Some(watch),
        _ => disk.watch(dir).ok().flatten(),
    }
}

/// Keeps a watch for who waits next.
pub(super) fn keep(disk: &Arc<dyn Disk>, dir: PathBuf, watch: Box<dyn Watch>) {
    let idle = Idle { disk: Arc::downgrade(disk), dir, watch, owner: OwnerProcess::current() };
    let replaced = IDLE.try_lock().map(|mut slot| slot.replace(idle));
    // Not under the mutex: it takes the kernel a while.
    drop(replaced);
}
