//! What handles keep for the next load or lock: mappings and open files. Their limits, and how to release them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use rustix::process::{Resource, getrlimit};

use super::process::OwnerProcess;

/// The number of mappings that all handles of a process together keep. The kernel allows a process 65,530 by default, and the
/// rest of the program needs some of them.
const MAX_KEPT: usize = 4096;

/// The number of files that they keep. `select`, which old code calls, takes no descriptor above 1023.
const MAX_KEPT_FILES: usize = 256;

/// Of the files that a process may open, the part that is kept: one in this many.
const FILES_PART: u64 = 4;

/// The address space, in bytes, that these mappings together take: a quarter of the address space of a 64-bit process.
const MAX_KEPT_BYTES: usize = 1 << 45;

/// A kind of what is kept. The kinds are limited and released separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mapping,
    File,
}

/// What is kept now of one kind, and how many times it was released.
struct Pool {
    kept: AtomicUsize,
    releases: AtomicU64,
}

impl Pool {
    const fn new() -> Self {
        Pool { kept: AtomicUsize::new(0), releases: AtomicU64::new(0) }
    }
}

static MAPPINGS: Pool = Pool::new();
static FILES: Pool = Pool::new();
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

impl Kind {
    fn pool(self) -> &'static Pool {
        match self {
            Kind::Mapping => &MAPPINGS,
            Kind::File => &FILES,
        }
    }

    /// Returns how many are kept at most. The process may change its limit of open files at any time.
    fn limit(self) -> usize {
        let Kind::File = self else { return MAX_KEPT };
        let files = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit / FILES_PART);
        usize::try_from(files).unwrap_or(MAX_KEPT_FILES).min(MAX_KEPT_FILES)
    }
}

/// All values of this process that keep something.
static KEEPERS: Mutex<Vec<Weak<dyn Keeper>>> = Mutex::new(Vec::new());

/// The process that registered the first keeper. In a forked child, a mutex that it inherited may never be unlocked.
static OWNER: LazyLock<OwnerProcess> = LazyLock::new(OwnerProcess::current);

/// A value that keeps mappings or files.
pub(crate) trait Keeper: Send + Sync {
    /// Drops all that is kept of one kind. A mapping or a file that is in use stays. Returns whether any were kept. Opens
    /// and maps nothing.
    fn release(&self, kind: Kind) -> bool;
}

/// Locked while something is released.
static RELEASING: Mutex<()> = Mutex::new(());

/// Lets [`retry_after_release`] reach a value that keeps something.
pub(crate) fn register<K: Keeper + 'static>(keeper: &Arc<K>) {
    LazyLock::force(&OWNER);
    let mut keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    if keepers.len() == keepers.capacity() {
        keepers.retain(|keeper| keeper.strong_count() > 0);
    }
    let keeper: Weak<K> = Arc::downgrade(keeper);
    keepers.push(keeper);
}

/// Calls `act`. If it fails because something that is kept may be in the way, releases all of that kind in this process
/// and calls it once more: what nothing uses must not prevent a lock, another mapping, an allocation or an open. The
/// caller must not have locked the file registry.
pub(crate) fn retry_after_release<T, E>(
    kind: Kind,
    mut act: impl FnMut() -> Result<T, E>,
    may_be_in_the_way: impl FnOnce(&E) -> bool,
) -> Result<T, E> {
    let before = kind.pool().releases.load(Ordering::Acquire);
    match act() {
        Err(e) if may_be_in_the_way(&e) && release_all_since(kind, before) => act(),
        done => done,
    }
}

/// Releases all that is kept of one kind. Returns whether any was released since the count was `before`, by this thread
/// or by another one. A forked child releases nothing.
fn release_all_since(kind: Kind, before: u64) -> bool {
    if !OWNER.is_current() {
        return false;
    }
    let releases = &kind.pool().releases;
    let turn = RELEASING.lock().unwrap_or_else(PoisonError::into_inner);
    let keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if keepers.iter().filter_map(Weak::upgrade).filter(|keeper| keeper.release(kind)).count() > 0 {
        releases.fetch_add(1, Ordering::Release);
    }
    drop(turn);
    releases.load(Ordering::Acquire) != before
}

/// A share of the limit, released on drop.
#[derive(Debug)]
pub(crate) struct KeptQuota {
    kind: Kind,
    bytes: usize,
}

impl KeptQuota {
    /// Takes the share of one more mapping of `bytes`. If the limit is reached, first releases all kept mappings: the
    /// average cost of a load stays constant, and mappings in use are soon kept again. Returns `None` if there is no
    /// room even then.
    pub(crate) fn of_mapping(bytes: usize) -> Option<KeptQuota> {
        Self::take(Kind::Mapping, bytes)
    }

    /// Takes the share of one more open file, in the same way.
    pub(crate) fn of_file() -> Option<KeptQuota> {
        Self::take(Kind::File, 0)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    fn take(kind: Kind, bytes: usize) -> Option<KeptQuota> {
        let limit = kind.limit();
        let try_take = || Self::try_take(kind, bytes, limit).ok_or(());
        retry_after_release(kind, try_take, |()| bytes <= MAX_KEPT_BYTES && limit > 0).ok()
    }

    fn try_take(kind: Kind, bytes: usize, limit: usize) -> Option<KeptQuota> {
        let add = |counter: &AtomicUsize, n: usize, limit: usize| {
            let sum = |kept: usize| kept.checked_add(n).filter(|&sum| sum <= limit);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()
        };
        add(&kind.pool().kept, 1, limit)?;
        if add(&KEPT_BYTES, bytes, MAX_KEPT_BYTES).is_none() {
            kind.pool().kept.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(KeptQuota { kind, bytes })
    }
}

impl Drop for KeptQuota {
    fn drop(&mut self) {
        self.kind.pool().kept.fetch_sub(1, Ordering::Relaxed);
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
        fn release(&self, kind: Kind) -> bool {
            let is_kept = kind == Kind::Mapping && self.is_kept.swap(false, Ordering::SeqCst);
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
        assert!(KeptQuota::of_mapping(MAX_KEPT_BYTES + 1).is_none());
        assert!(keeper.is_kept.load(Ordering::SeqCst), "more than the limit is refused at once");
        let act = || {
            retry_after_release(
                Kind::Mapping,
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
        assert_eq!(retry_after_release(Kind::Mapping, late, |()| true), Ok(()));
    }
}
