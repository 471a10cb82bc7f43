//! What has changed from one snapshot to another.

use super::snapshot::Snapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{self, NameChanges};

impl Snapshot {
    /// The names that came, went, or have another header, since an earlier snapshot of the same store, by whatever handle or
    /// process it was taken. Of a later one it is what has to be undone.
    ///
    /// Few commits apart this reads what they changed, otherwise all headers; no element is read. A tensor that was saved
    /// again stands on another storage, and so has changed, with the same elements too. What was changed in place is not seen.
    ///
    /// ```
    /// use stridemap::{Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// let earlier = store.snapshot();
    /// store.save("weight", &Tensor::from_vec(vec![1f32, 2.], &[2])?)?;
    /// let changes = store.snapshot().changes_since(&earlier)?;
    /// assert_eq!(changes.added, ["weight"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a snapshot of another store; `Forked`; those of reading the metadata.
    pub fn changes_since(&self, earlier: &Snapshot) -> Result<NameChanges> {
        let (own, other) = (&self.loader.history, &earlier.loader.history);
        own.check_process()?;
        other.check_process()?;
        if own.uuid != other.uuid {
            let message = format!(
                "changes_since: {} is another store than {}; compare two snapshots of one",
                other.paths.root().display(),
                own.paths.root().display()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        generation::changes_between(earlier.inner(), self.inner())
    }
}
