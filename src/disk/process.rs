//! Protects values that a forked child inherits from its parent.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::system_calls::{Forks, count_forks, zero_after_fork};
use crate::error::{Error, ErrorKind, Result};

/// The process that created a value.
///
/// A forked child has a copy of the value, but shares with its parent the open files, locks and unfinished files that
/// the value uses, and may inherit a mutex that no thread will ever unlock. So in the child the value must not touch
/// any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerProcess(u64);

/// The number of this process: greater than that of each process that it was forked from. 0 if it has none yet. `None`
/// if the kernel cannot zero memory in a forked child.
static CURRENT: LazyLock<Option<&'static AtomicU64>> = LazyLock::new(zero_after_fork);

/// The last number that this process, or a process that it was forked from, has assigned.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

impl OwnerProcess {
    /// Returns the calling process. This is a load from memory, not a system call, unless the kernel cannot zero memory
    /// in a forked child.
    pub(crate) fn current() -> Self {
        let Some(current) = *CURRENT else { return OwnerProcess(std::process::id().into()) };
        OwnerProcess(match current.load(Ordering::Relaxed) {
            0 => {
                // Drawn before it is stored: a child that is forked in between then draws a different one.
                let drawn = LAST_NUMBER.fetch_add(1, Ordering::SeqCst) + 1;
                let stored = current.compare_exchange(0, drawn, Ordering::SeqCst, Ordering::SeqCst);
                stored.map_or_else(|by_another_thread| by_another_thread, |_| drawn)
            }
            number => number,
        })
    }

    /// Whether the calling process is the owner, not a child that the owner forked.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Checks that the calling process is the owner. `what` says how the value was created, as in "x.smap: the store
    /// was opened".
    ///
    /// # Errors
    /// `Stale` in a child of the owner.
    pub(crate) fn check(self, what: impl FnOnce() -> String) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        let advice =
            "by the parent of this forked process, and its locks cannot be used here; open the store again";
        Err(Error::new(ErrorKind::Stale, format!("{} {advice}", what())))
    }
}

/// The number of forks of this process, or `None` if they cannot be counted.
static FORKS: LazyLock<Option<&'static Forks>> = LazyLock::new(count_forks);

/// Tells whether the process has forked since this was created.
///
/// A file that was opened before a fork is shared with the child, and so is a lock of it: if the parent is killed while it
/// holds the lock, the child keeps the lock until it ends. So a file is locked only if no child was forked since the file
/// was opened. A child that is forked later, while the file is locked, shares the lock in any case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkCheck(Option<u64>);

impl ForkCheck {
    /// Must be created before the file is opened. A fork that is not over may still copy the file.
    pub(crate) fn begin() -> Self {
        let count = FORKS.and_then(|forks| {
            let ended = forks.ended.load(Ordering::SeqCst);
            let begun = forks.begun.load(Ordering::SeqCst);
            (begun == ended).then_some(begun)
        });
        ForkCheck(count)
    }

    /// Whether a child may share the file. True if forks cannot be counted.
    pub(crate) fn may_have_forked(self) -> bool {
        let begun = FORKS.map(|forks| forks.begun.load(Ordering::SeqCst));
        self.0.is_none() || self.0 != begun
    }
}
