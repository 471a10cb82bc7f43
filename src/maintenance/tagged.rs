//! The generations that tags name, and which storages they have.

use std::collections::{BTreeMap, BTreeSet};

use stridemap_format::KeptGeneration;

use crate::error::{ErrorKind, Result};
use crate::generation::{Generation, StoreDir, pin, pin_kept};

/// The generations that tags name, and which of them have a storage.
///
/// The newest manifest says what they need, because ids only grow: one whose next id is above that of a storage has it, if
/// a later generation has it too. But between the generations with a storage that was restored, some lack it, and only
/// their own records tell.
#[derive(Debug, Default)]
pub(crate) struct TaggedGenerations {
    /// In ascending order.
    kept: Vec<(u64, KeptGeneration)>,
    /// For each restored storage that was examined: the generations, tagged or in use, that may have it.
    restored: BTreeMap<u64, BTreeSet<u64>>,
}

impl TaggedGenerations {
    pub(crate) fn list(newest: &Generation) -> Result<Self> {
        let kept = newest.tagged(0)?.collect::<Result<_>>()?;
        Ok(TaggedGenerations { kept, restored: BTreeMap::new() })
    }

    /// Opens the generations with tags, and those in use, to see which of them have these storages. Does nothing if there
    /// is no such storage.
    ///
    /// # Errors
    /// `Io`. A generation that is damaged, or cannot be opened, may have all of them.
    pub(crate) fn find_restored(
        &mut self,
        store: &StoreDir,
        newest: &Generation,
        ids: &[u64],
        in_use: &[u64],
    ) -> Result<()> {
        let Some(first) = ids.iter().min().copied() else { return Ok(()) };
        let mut restored: BTreeMap<u64, BTreeSet<u64>> =
            ids.iter().map(|&id| (id, BTreeSet::new())).collect();
        let tagged = self.with_storage(first);
        let generations: BTreeSet<u64> = tagged.chain(in_use.iter().copied()).collect();
        for generation in generations {
            // A commit that failed may have left a manifest in `generations/` with the number of a different generation.
            let is_kept = newest.is_tagged(generation)? || newest.is_released(generation)?;
            let mut opened = None;
            if is_kept {
                opened = unless_damaged(pin_kept(store, generation))?.flatten();
            }
            if opened.is_none() {
                opened = unless_damaged(pin(store, generation))?.flatten();
            }
            for (&id, having) in &mut restored {
                let found = opened.as_ref().map(|opened| unless_damaged(opened.storage(id))).transpose()?;
                if found.flatten().is_none_or(|found| found.is_some()) {
                    having.insert(generation);
                }
            }
        }
        self.restored = restored;
        Ok(())
    }

    /// Returns the tagged generations that have a storage, in ascending order. The storage is one of the newest generation,
    /// or garbage. For garbage, only those before the generation that dropped it count.
    pub(crate) fn with_storage(&self, id: u64) -> impl DoubleEndedIterator<Item = u64> {
        let at = self.kept.partition_point(|(_, kept)| kept.next_storage_id <= id);
        let tagged = self.kept.iter().skip(at).map(|(generation, _)| *generation);
        tagged.filter(move |&generation| self.may_have(generation, id))
    }

    /// Whether a generation before the one that dropped a storage may have it.
    pub(super) fn may_have(&self, generation: u64, id: u64) -> bool {
        self.restored.get(&id).is_none_or(|having| having.contains(&generation))
    }

    /// Returns the first one that is not before a generation.
    pub(super) fn first_from(&self, generation: u64) -> Option<&(u64, KeptGeneration)> {
        self.kept.get(self.kept.partition_point(|(kept, _)| *kept < generation))
    }
}

/// Returns `None` for what is damaged.
fn unless_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(None),
        result => result.map(Some),
    }
}
