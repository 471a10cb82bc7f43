//! Protects values that a forked child inherits from its parent.

use crate::error::{Error, ErrorKind, Result};

/// The process that created a value.
///
/// A forked child has a copy of the value, but shares with its parent the open files, locks and unfinished files that
/// the value uses, and may inherit a mutex that no thread will ever unlock. So in the child the value must not touch
/// any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerProcess(u32);

impl OwnerProcess {
    /// Returns the calling process.
    pub(crate) fn current() -> Self {
        OwnerProcess(std::process::id())
    }

    /// Whether the calling process is the owner, not a child that the owner forked.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Checks that the calling process is the owner. `what` says how the value was created, as in "x.smap: the store
    /// was opened".
    ///
    /// # Errors
    /// `Forked` in a child of the owner.
    pub(crate) fn check(self, what: impl FnOnce() -> String) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        let advice =
            "by the parent of this forked process, and its locks cannot be used here; open the store again";
        Err(Error::new(ErrorKind::Forked, format!("{} {advice}", what())))
    }
}
