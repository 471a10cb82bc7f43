//! Receives a generation of the same store elsewhere.

use std::fmt;
use std::path::Path;

use stridemap_format::Manifest;

use crate::error::{Error, ErrorKind, Result};
use crate::generation::{self, GenerationId, IncompleteStore, OpenStore, Transfer};
use crate::maintenance::Receiving;
use crate::storage::KnownTails;
use crate::store::{Snapshot, Store, StoreOptions};

/// How to receive.
#[derive(Clone, Copy)]
pub struct ReceiveOptions<'a> {
    /// How many files are read at a time, each by a thread of its own.
    pub jobs: usize,
    /// Is called with the bytes read since the last call, on any of these threads. An error ends the operation, and is
    /// returned.
    pub progress: &'a (dyn Fn(u64) -> Result<()> + Sync),
    /// Whether the other store still has the elements of a mutable or live storage that this store received from it, or sent
    /// to it, last. The elements of this store then stay as they are, also if they were changed since.
    pub is_unchanged: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Default for ReceiveOptions<'_> {
    /// Reads four files at a time, and the elements of all mutable and live storages.
    fn default() -> Self {
        ReceiveOptions { jobs: 4, progress: &|_| Ok(()), is_unchanged: &|_| false }
    }
}

impl fmt::Debug for ReceiveOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveOptions").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Received {
    /// The bytes that were read from the other store.
    pub received_bytes: u64,
    /// The number of storages that are new, have grown, or may have changed in place.
    pub storage_count: u64,
    /// The newest generation of this store.
    pub generation: u64,
}

impl Store {
    /// Makes this store the same as a later generation of the same store elsewhere: a replica. That is one commit, after which
    /// the store has the tensors, attributes and tags of the other one. Readers see the old generation or the new one, and
    /// those of older generations keep them.
    ///
    /// `base` is the generation of this store that the other one is known to descend from, such as the one that was received or
    /// sent last. This store must still be at that generation: commits of its own are never undone. Without a base, this store
    /// must be empty. If both stores are at the same generation, only mutable and live tensors are updated.
    ///
    /// Only the storages that this store lacks are read, and the new rows of those that have grown. All of these are verified
    /// before anything is changed. Mutable and live tensors are not versioned: their elements are overwritten, just before the
    /// commit, by those of the other store, each storage under its lock, unless [`ReceiveOptions::is_unchanged`] says that the
    /// other store has not changed them. Garbage, and what readers of the other store keep,
    /// is not received.
    ///
    /// Other processes may use both stores meanwhile. What a receive that was killed has read is used by the next one, unless
    /// a collection or a commit in this store has deleted it.
    ///
    /// ```
    /// use stridemap::replica::ReceiveOptions;
    /// use stridemap::{Store, StoreOptions};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1i32, 2])?;
    /// let options = ReceiveOptions::default();
    /// let path = dir.path().join("replica.smap");
    /// let (replica, _) = StoreOptions::new().create_replica(path, &store.snapshot(), &options)?;
    ///
    /// store.append("x", &[3i32])?;
    /// store.tag("v1")?;
    /// let base = replica.snapshot().id()?;
    /// let received = replica.receive(&store.snapshot(), Some(base), &options)?;
    /// assert_eq!((received.generation, received.storage_count), (store.generation(), 1));
    /// assert_eq!(replica.at("v1")?.load("x")?.read::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Conflict` if this store has commits of its own, is at a later generation, or was changed meanwhile;
    /// `InvalidArgument` for a different store; `Corrupt` if what was received is damaged, or contradicts this store;
    /// `NotAllowed` for external tensors, which must be [materialized](Store::materialize) first; `Interrupted` if a writer of
    /// the other store ended in the middle of a change; `Busy`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown`
    /// and `Poisoned`, as for every [write](Store#errors); that of `progress`. After all of these except `CommitUnknown`,
    /// names, sealed elements and tags are unchanged. If elements of mutable or live storages were replaced already, the error
    /// says so.
    pub fn receive(
        &self,
        from: &Snapshot,
        base: Option<GenerationId>,
        options: &ReceiveOptions<'_>,
    ) -> Result<Received> {
        let loader = &self.loader;
        receive((&loader.store, &loader.tails), from, base, options)
    }
}

impl StoreOptions {
    /// Creates a store that is the same as a generation of another one: it has the same uuid, generation, tensors and tags. It
    /// can [`receive`](Store::receive) later generations. The path must not exist. The store appears whole or not at all.
    ///
    /// ```
    /// use stridemap::replica::ReceiveOptions;
    /// use stridemap::{Store, StoreOptions};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1i32, 2])?;
    /// let path = dir.path().join("replica.smap");
    /// let options = ReceiveOptions::default();
    /// let (replica, received) = StoreOptions::new().create_replica(path, &store.snapshot(), &options)?;
    /// assert_eq!((replica.uuid(), replica.generation()), (store.uuid(), 2));
    /// assert_eq!(received.storage_count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists` if the path exists; those of [`Store::receive`], after which nothing was created; `CommitUnknown` if
    /// the last sync failed: the store may exist.
    pub fn create_replica(
        &self,
        path: impl AsRef<Path>,
        from: &Snapshot,
        options: &ReceiveOptions<'_>,
    ) -> Result<(Store, Received)> {
        let path = path.as_ref();
        from.loader.store.check_process()?;
        let incoming = from.pinned_generation().manifest();
        // If that is the generation to be received, it has the same identity: it is empty, except for its time.
        let first = Manifest { time_ns: incoming.time_ns, ..Manifest::first(incoming.uuid) };
        let (incomplete, store) = IncompleteStore::open_with(&self.disk, path, self.options, &first)?;
        let tails = KnownTails::default();
        let received = receive((&store, &tails), from, None, options);
        let received = received.map_err(|e| generation::not_created(path, e))?;
        incomplete.finish(&store)?;
        drop(store);
        let store = StoreOptions { at: None, ..self.clone() }.open_with(path, None)?;
        if store.loader.store.uuid != incoming.uuid {
            let message =
                format!("create {}: a different store has taken its place; open that one", path.display());
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        Ok((store, received))
    }
}

fn receive(
    (store, tails): (&OpenStore, &KnownTails),
    from: &Snapshot,
    base: Option<GenerationId>,
    options: &ReceiveOptions<'_>,
) -> Result<Received> {
    store.check_process()?;
    let other = &from.loader.store;
    other.check_process()?;
    let generation = from.pinned_generation();
    let transfer = Transfer::new(options.progress);
    let jobs = options.jobs.max(1);
    let ReceiveOptions { is_unchanged, .. } = *options;
    let receiving =
        Receiving { store, tails, from: other, generation, base, jobs, transfer: &transfer, is_unchanged };
    let storage_count = receiving.run().map_err(|e| {
        let (number, from) = (generation.number(), other.paths.root().display());
        e.context(format!("receive generation {number} of {from} into {}", store.paths.root().display()))
    })?;
    Ok(Received { received_bytes: transfer.received_bytes(), storage_count, generation: generation.number() })
}
