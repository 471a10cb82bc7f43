//! The commit of a received generation.

use std::sync::Arc;

use super::differences::Differences;
use super::early::EarlyFiles;
use super::entries::Tables;
use super::incoming::Incoming;
use super::publish::{Base, move_on, publish_manifest};
use super::writer_lock::WriterLock;
use super::{Generation, OpenStore, unsynced};
use crate::disk::step;
use crate::error::Result;
use crate::storage::Grown;

/// Publishes a received generation as the newest of this store, and moves the handle to it. All files that it needs exist
/// and are durable, except for their names and the first chunk digests of the storages that have `grown`.
///
/// The comments say what a crash just after the step leaves behind.
///
/// # Errors
/// Those of [`publish`](super::publish()). `Conflict` also if a file that has its final name was deleted since.
pub(crate) fn publish_received(
    store: &OpenStore,
    (incoming, differences): (&Incoming, Differences),
    early: EarlyFiles<'_>,
    grown: &mut [Grown],
    lock: &WriterLock,
) -> Result<Arc<Generation>> {
    store.record_failure(publish_locked(store, (incoming, differences), early, grown, lock))
}

fn publish_locked(
    store: &OpenStore,
    (incoming, differences): (&Incoming, Differences),
    early: EarlyFiles<'_>,
    grown: &mut [Grown],
    lock: &WriterLock,
) -> Result<Arc<Generation>> {
    // 1. The newest generation under the lock must be the one that was compared.
    store.check_poison()?; // another thread may have set it while this one waited
    unsynced::settle(store, lock)?; // crash: the generations so far, now durable
    let (newest, names) = store.newest_listed(lock)?;
    early.check_base(&newest)?;
    early.check(lock)?;
    drop(early); // its hold on the generation, which only readers need after this commit
    let mut older = store.older(names, &newest, lock)?;
    unsynced::settle_creation(store, &newest, lock)?; // crash: the store's own name, now durable

    // 2. Storages, and the manifests and tables that tags keep.
    let Differences { mut next, gained, released, .. } = differences;
    let incoming = &incoming.generation;
    let tables = Tables { table: incoming.tables().table, history: newest.tables().history };
    older.delete_garbage(store, &newest, (&mut next, tables))?; // crash: garbage, deleted again next time
    for grown in grown {
        grown.publish(&store.paths)?; // crash: unreferenced digests, replaced or deleted later
    }
    // Without these syncs, a tensor could be left without its storage, or a tag without its generation.
    step!("sync-storages-dir", store.sync_dir(&store.paths.storages_dir()))?; // crash: the same, now durable
    step!("sync-received-names", store.sync_dir(&store.paths.generations_dir()))?; // crash: the same, now durable

    // 3. The manifest.
    let base = Base { newest: &newest, table: incoming.table().cloned(), is_received: true };
    let generation = Arc::new(publish_manifest(store, next, base, lock)?); // crash: this generation, durable

    // 4. The handle moves on and releases its old generation. What no reader needs is deleted.
    let gained = gained.into_iter().map(|(generation, _)| generation).collect();
    move_on(store, (newest, &generation), &mut older, (gained, &released), lock); // crash: garbage, deleted next time
    Ok(generation)
}
