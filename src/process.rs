//! Forked children: they inherit copies of values that belong to their parent.

use crate::error::{Error, ErrorKind, Result};

/// The process that made a value.
///
/// A forked child has a copy of the value, but shares the open files, locks and unfinished files behind it with its parent,
/// and may hold a mutex that no thread will ever unlock. So the value does nothing to them there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerProcess(u32);

impl OwnerProcess {
    /// Returns the process that calls this.
    pub(crate) fn current() -> Self {
        OwnerProcess(std::process::id())
    }

    /// Whether the calling process is the owner, and not a child that the owner has forked.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// `what` says how the value was made, as in "x.smap: the store was opened".
    ///
    /// # Errors
    /// `Forked` in a child that the owner has forked.
    pub(crate) fn check(self, what: impl FnOnce() -> String) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        let advice =
            "by the process that this one was forked from, whose locks it shares; open the store again here";
        Err(Error::new(ErrorKind::Forked, format!("{} {advice}", what())))
    }
}
