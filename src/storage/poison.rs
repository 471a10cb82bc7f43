use std::sync::{Arc, OnceLock};

use crate::disk::{Disk, Step};
use crate::error::{Error, ErrorKind, Result};

/// The first sync that failed of what one handle wrote, if one has. Everything that writes for the handle shares it.
///
/// The kernel drops the pages that it failed to write and calls them clean, so that another sync would succeed over lost
/// data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poison(Arc<OnceLock<Error>>);

impl Poison {
    /// Refuses to write once a sync has failed.
    ///
    /// # Errors
    /// `Poisoned`, whose source is the failure of that sync.
    pub(crate) fn check(&self, disk: &dyn Disk) -> Result<()> {
        match self.0.get().filter(|_| Step::Poison.is_taken(disk)) {
            None => Ok(()),
            Some(first) => Err(Error::new(
                ErrorKind::Poisoned,
                format!(
                    "this handle writes no more, because a sync failed; open the store again. It was: {first}"
                ),
            )
            .with_source(first.clone())),
        }
    }

    /// Remembers a failed sync, unless there is one already.
    pub(crate) fn set(&self, failed: &Error) {
        let _ = self.0.set(failed.clone());
    }
}
