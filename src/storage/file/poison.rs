//! The first failed sync of a handle.

use std::sync::{Arc, OnceLock};

use crate::disk::if_test_omits_step;
use crate::error::{Error, ErrorKind, Result};

/// The first failed sync of one handle, if any. Everything that writes for the handle shares it.
///
/// The kernel drops the pages that it failed to write and marks them clean, so a second sync would succeed although
/// data is lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poison(Arc<OnceLock<Error>>);

impl Poison {
    /// Checks that no sync has failed, and that the handle may write.
    ///
    /// # Errors
    /// `Poisoned` once a sync has failed, with that failure in the message; `ReadOnly` for a handle that only reads.
    pub(crate) fn check(&self) -> Result<()> {
        if_test_omits_step!("poison", return Ok(()));
        match self.0.get() {
            None => Ok(()),
            Some(refusal) if refusal.kind() == ErrorKind::ReadOnly => Err(refusal.clone()),
            Some(first) => Err(Error::new(
                ErrorKind::Poisoned,
                format!(
                    "a sync failed, so this handle can no longer write; open the store again; the first failure \
                     was: {first}"
                ),
            )
            .caused_by(first)),
        }
    }

    /// Records a failed sync, or why the handle only reads, unless an earlier one is recorded.
    pub(crate) fn set(&self, failed: &Error) {
        let _ = self.0.set(failed.clone());
    }
}
