//! Garbage collection: deletes files that neither the newest generation nor an older one in use needs.

use std::path::Path;
use std::sync::Arc;

use stridemap_format::{Digest, full_chunk_count};

use super::needs::Needs;
use crate::disk::{Access, if_test_omits_step};
use crate::error::Result;
use crate::generation::{Collected, Collector, OpenStore, list, unsynced};
use crate::storage::GrowthLock;

/// Deletes every file that neither the newest generation nor a pinned one needs, and cuts off bytes past the end of
/// sealed storages.
pub(crate) fn collect_all(store: &OpenStore) -> Result<Collected> {
    store.check_poison()?;
    let lock = store.lock_writers()?;
    let newest = unsynced::settle_newest(store, &lock)?;
    store.install(Arc::clone(&newest));
    let names = list(&*store.disk, &store.paths)?;
    let mut collector = Collector::new(store);
    let mut older = store.older(Some(names), &newest, &lock)?;
    older.collect_all(&mut collector);
    let pins = older.all_as_in_use().collect();
    if_test_omits_step!("pinned-storages", pins = Vec::new());
    let needs = Needs::of(store, &newest, pins, false)?;
    older.remove_garbage(&newest, &mut collector)?;
    collector.sweep(|file| needs.unneeded(file))?;
    for (id, length_bytes) in needs.sealed_storages() {
        cut_storage(&mut collector, store, id, length_bytes);
    }
    Ok(collector.collected)
}

/// Cuts off what an aborted append left, unless an append is in progress. The caller holds the writers' lock, so the
/// length is the newest. Best effort.
fn cut_storage(collector: &mut Collector<'_>, store: &OpenStore, id: u64, length_bytes: u64) {
    let (bin, sum) = (store.paths.storage(id), store.paths.sum(id));
    let sum_bytes = full_chunk_count(length_bytes) * size_of::<Digest>() as u64;
    let is_longer = |path: &Path, bytes: u64| store.disk.stat(path).is_ok_and(|stat| stat.size_bytes > bytes);
    if !is_longer(&bin, length_bytes) && !is_longer(&sum, sum_bytes) {
        return;
    }
    let Ok(Some(lock)) = GrowthLock::try_take(&store.disk, &bin) else { return };
    collector.collected.size_bytes += lock.truncate(length_bytes).unwrap_or_default();
    if is_longer(&sum, sum_bytes)
        && let Ok(file) = store.disk.open(&sum, Access::Write)
        && let Ok(stat) = file.stat()
        && stat.link_count == 1
        && file.set_len(sum_bytes).is_ok()
    {
        collector.collected.size_bytes += stat.size_bytes - sum_bytes;
    }
}
