//! The identity of a generation.

use crate::error::Result;
use crate::generation::GenerationId;
use crate::store::Snapshot;

impl Snapshot {
    /// Returns the identity of this generation: its number, and a digest of its manifest. Each replica of the store that has
    /// this generation returns the same.
    ///
    /// ```
    /// use stridemap::replica::ReceiveOptions;
    /// use stridemap::{Store, StoreOptions};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// let options = ReceiveOptions::default();
    /// let path = dir.path().join("replica.smap");
    /// let (replica, _) = StoreOptions::new().create_replica(path, &store.snapshot(), &options)?;
    /// assert_eq!(replica.snapshot().id()?, store.snapshot().id()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Stale`.
    pub fn id(&self) -> Result<GenerationId> {
        self.loader.store.check_process()?;
        self.pinned_generation().id()
    }
}
