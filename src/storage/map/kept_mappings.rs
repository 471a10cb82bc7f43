//! Mappings that handles keep for the next load: their limit, and how to release them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::disk::OwnerProcess;

/// The number of mappings that all handles of a process together keep. The kernel allows a process 65,530 by default,
/// and the rest of the program needs some of them.
const MAX_KEPT: usize = 4096;

/// The address space, in bytes, that these mappings together take: a quarter of the address space of a 64-bit process.
const MAX_KEPT_BYTES: usize = 1 << 45;

/// The mappings that are kept now.
static KEPT: AtomicUsize = AtomicUsize::new(0);
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// All values of this process that keep mappings.
static KEEPERS: Mutex<Vec<Weak<dyn Keeper>>> = Mutex::new(Vec::new());

/// The process that registered the first keeper. In a forked child, a mutex that it inherited may never be unlocked.
static OWNER: LazyLock<OwnerProcess> = LazyLock::new(OwnerProcess::current);

/// A value that keeps mappings.
pub(in crate::storage) trait Keeper: Send + Sync {
    /// Drops all kept mappings. A mapping that a tensor uses stays mapped. Returns whether any were kept.
    fn release(&self) -> bool;
}

/// The number of times that kept mappings were released.
static RELEASES: AtomicU64 = AtomicU64::new(0);

/// Locked while mappings are released.
static RELEASING: Mutex<()> = Mutex::new(());

/// Lets [`retry_after_release`] reach a value that keeps mappings.
pub(in crate::storage) fn register<K: Keeper + 'static>(keeper: &Arc<K>) {
    LazyLock::force(&OWNER);
    let mut keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    if keepers.len() == keepers.capacity() {
        keepers.retain(|keeper| keeper.strong_count() > 0);
    }
    let keeper: Weak<K> = Arc::downgrade(keeper);
    keepers.push(keeper);
}

/// Calls `act`. If it fails because a kept mapping may be in the way, releases all kept mappings of this process and
/// calls it once more: a mapping that no tensor uses must not prevent a lock, another mapping or an allocation. The
/// caller must not have locked the file registry.
pub(in crate::storage) fn retry_after_release<T, E>(
    mut act: impl FnMut() -> Result<T, E>,
    may_be_in_the_way: impl FnOnce(&E) -> bool,
) -> Result<T, E> {
    let before = RELEASES.load(Ordering::Acquire);
    match act() {
        Err(e) if may_be_in_the_way(&e) && release_all_since(before) => act(),
        done => done,
    }
}

/// Releases all kept mappings. Returns whether any were released since the count was `before`, by this thread or by
/// another one. A forked child releases none.
fn release_all_since(before: u64) -> bool {
    if !OWNER.is_current() {
        return false;
    }
    let turn = RELEASING.lock().unwrap_or_else(PoisonError::into_inner);
    let keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if keepers.iter().filter_map(Weak::upgrade).filter(|keeper| keeper.release()).count() > 0 {
        RELEASES.fetch_add(1, Ordering::Release);
    }
    drop(turn);
    RELEASES.load(Ordering::Acquire) != before
}

/// A share of the limit, released on drop.
#[derive(Debug)]
pub(in crate::storage) struct KeptQuota {
    bytes: usize,
}

impl KeptQuota {
    /// Takes the share of one more mapping of `bytes`. If the limit is reached, first releases all kept mappings: the
    /// average cost of a load stays constant, and mappings in use are soon kept again. Returns `None` if there is no
    /// room even then.
    pub(in crate::storage) fn take(bytes: usize) -> Option<KeptQuota> {
        retry_after_release(|| Self::try_take(bytes).ok_or(()), |()| bytes <= MAX_KEPT_BYTES).ok()
    }

    fn try_take(bytes: usize) -> Option<KeptQuota> {
        let add = |counter: &AtomicUsize, n: usize, limit: usize| {
            let sum = |kept: usize| kept.checked_add(n).filter(|&sum| sum <= limit);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()
        };
        add(&KEPT, 1, MAX_KEPT)?;
        if add(&KEPT_BYTES, bytes, MAX_KEPT_BYTES).is_none() {
            KEPT.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(KeptQuota { bytes })
    }
}

impl Drop for KeptQuota {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::Relaxed);
        KEPT_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Keeps one mapping, and takes a while to release it.
    struct Slow {
        is_kept: AtomicBool,
        is_mapped: AtomicBool,
        begun: Sender<()>,
    }

    impl Keeper for Slow {
        fn release(&self) -> bool {
            let is_kept = self.is_kept.swap(false, Ordering::SeqCst);
            if is_kept {
                self.begun.send(()).unwrap();
                thread::sleep(Duration::from_millis(100));
                self.is_mapped.store(false, Ordering::SeqCst);
            }
            is_kept
        }
    }

    #[test]
    fn thread_waits_for_another_that_releases_the_mappings_in_its_way() {
        let (begun, wait_until_begun) = channel();
        let keeper = Arc::new(Slow { is_kept: true.into(), is_mapped: true.into(), begun });
        register(&keeper);
        assert!(KeptQuota::take(MAX_KEPT_BYTES + 1).is_none());
        assert!(keeper.is_kept.load(Ordering::SeqCst), "more than the limit is refused at once");
        let act = || {
            retry_after_release(
                || if keeper.is_mapped.load(Ordering::SeqCst) { Err(()) } else { Ok(()) },
                |()| true,
            )
        };
        thread::scope(|scope| {
            let first = scope.spawn(act);
            wait_until_begun.recv().unwrap();
            assert_eq!((act(), first.join().unwrap()), (Ok(()), Ok(())));
        });
        // Another thread releases all mappings between the failure and the retry.
        keeper.is_mapped.store(true, Ordering::SeqCst);
        keeper.is_kept.store(true, Ordering::SeqCst);
        let late = || {
            let was_mapped = keeper.is_mapped.load(Ordering::SeqCst);
            act().and(if was_mapped { Err(()) } else { Ok(()) })
        };
        assert_eq!(retry_after_release(late, |()| true), Ok(()));
    }
}
