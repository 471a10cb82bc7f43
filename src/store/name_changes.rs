//! The changes between two snapshots.

use super::snapshot::Snapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{self, NameChanges};

impl Snapshot {
    /// Returns the names that were added, removed or given a different header since an earlier snapshot of the same
    /// store. The snapshots may come from different handles. If `earlier` is the newer of the two, the result lists the
    /// changes that undo the commits between them.
    ///
    /// If there are only a few commits between the snapshots, this reads what they changed; otherwise it reads all
    /// headers. No element is read. A tensor that was saved again has a different storage and counts as changed, even
    /// if its elements are the same. Changes in place are not detected.
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
    /// [`ErrorKind::InvalidArgument`] for a snapshot of a different store; `Corrupt` for damaged metadata; `Stale`;
    /// `Io`.
    pub fn changes_since(&self, earlier: &Snapshot) -> Result<NameChanges> {
        let (own, other) = (&self.loader.store, &earlier.loader.store);
        own.check_process()?;
        other.check_process()?;
        if own.uuid != other.uuid {
            let message = format!(
                "changes_since: {} is a different store from {}; compare two snapshots of one store",
                other.paths.root().display(),
                own.paths.root().display()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        generation::changes_between(earlier.pinned_generation(), self.pinned_generation(), "")
    }
}
