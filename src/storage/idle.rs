//! Mappings that handles keep for the next load: their limit, and how to give them up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The number of mappings that all handles of a process together keep. The kernel allows a process 65,530 by default,
/// and the rest of the program needs some of them.
const MAX_KEPT: usize = 4096;

/// The address space, in bytes, that these mappings together take: a quarter of the address space of a 64-bit process.
const MAX_KEPT_BYTES: usize = if usize::BITS == 64 { 1 << 45 } else { 1 << 29 };

/// The mappings that are kept now.
static KEPT: AtomicUsize = AtomicUsize::new(0);
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// All values of this process that keep mappings.
static KEEPERS: Mutex<Vec<Weak<dyn Keeper>>> = Mutex::new(Vec::new());

/// A value that keeps mappings.
pub(super) trait Keeper: Send + Sync {
    /// Drops all of them. Those that a tensor uses stay mapped for it. Returns whether there were any.
    fn give_up(&self) -> bool;
}

/// Lets [`give_up_all`] reach a value that keeps mappings.
pub(super) fn register<K: Keeper + 'static>(keeper: &Arc<K>) {
    let mut keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    if keepers.len() == keepers.capacity() {
        keepers.retain(|keeper| keeper.strong_count() > 0);
    }
    let keeper: Weak<K> = Arc::downgrade(keeper);
    keepers.push(keeper);
}

/// Gives up all kept mappings of this process: a mapping that no tensor uses must not stand in the way of a lock or of
/// another mapping. Returns whether there were any. The caller must not have locked the file registry.
pub(super) fn give_up_all() -> bool {
    let keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let given_up = keepers.iter().filter_map(Weak::upgrade).filter(|keeper| keeper.give_up());
    given_up.count() > 0
}

/// A share of the limit, released on drop.
#[derive(Debug)]
pub(super) struct Share {
    bytes: usize,
}

impl Share {
    /// Takes the share of one more mapping of `bytes`. If the limit is reached, all kept mappings are given up first:
    /// the work per load stays constant, and mappings in use are soon kept again. Returns `None` for a mapping beyond
    /// the limit.
    pub(super) fn take(bytes: usize) -> Option<Share> {
        Self::try_take(bytes).or_else(|| give_up_all().then(|| Self::try_take(bytes))?)
    }

    fn try_take(bytes: usize) -> Option<Share> {
        let add = |counter: &AtomicUsize, n: usize, limit: usize| {
            let sum = |kept: usize| kept.checked_add(n).filter(|&sum| sum <= limit);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()
        };
        add(&KEPT, 1, MAX_KEPT)?;
        if add(&KEPT_BYTES, bytes, MAX_KEPT_BYTES).is_none() {
            KEPT.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Share { bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::Relaxed);
        KEPT_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
