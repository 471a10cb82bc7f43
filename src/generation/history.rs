//! Tags, the generations that they keep, and the garbage that only those generations need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stridemap_format::{GarbageKey, KeptGeneration, KeptKey, Manifest, StorageRecord, Tag};

use super::Generation;
use super::entries::{Entries, GarbageEntry, KeptEntry, Tables, TagEntry, insert, remove};
use crate::disk::if_test_omits_step;
use crate::error::Result;

/// A tag that a transaction makes.
#[derive(Clone, Debug)]
pub(super) struct NewTag {
    /// Whether the message of the transaction is about the tag. It is not if the tag only keeps what is changed.
    pub(super) has_message: bool,
    /// The generation; `None` for the one that the transaction publishes.
    pub(super) earlier: Option<Arc<Generation>>,
}

/// The earlier generations that a transaction tags for the first time, and those that lose their last tag.
#[derive(Debug, Default)]
pub(crate) struct TagChanges {
    /// Their manifests must be in `generations/` before the next generation is published.
    pub(super) gained: Vec<Arc<Generation>>,
    /// In ascending order. Once the next generation is published, only readers of these need them.
    pub(super) released: Vec<(u64, KeptGeneration)>,
}

/// Whether the message of a transaction is about earlier generations only, which it tags.
pub(super) fn is_about_earlier(changes: &BTreeMap<String, Option<NewTag>>) -> bool {
    let mut made = changes.values().flatten().peekable();
    made.peek().is_some() && made.all(|tag| tag.earlier.is_some() && tag.has_message)
}

/// Changes the tags of the next generation: `None` removes a tag.
pub(super) fn change_tags(
    next: &mut Manifest,
    tables: Tables<'_>,
    changes: BTreeMap<String, Option<NewTag>>,
) -> Result<TagChanges> {
    let mut counts: BTreeMap<u64, i64> = BTreeMap::new();
    let mut earlier_tagged: BTreeMap<u64, Arc<Generation>> = BTreeMap::new();
    for (name, new) in changes {
        if let Some(before) = (Entries { manifest: next, tables }).find::<TagEntry>(&name)? {
            *counts.entry(before.generation).or_default() -= 1;
        }
        let Some(NewTag { earlier, has_message }) = new else {
            remove::<TagEntry>(next, tables, &name)?;
            continue;
        };
        let generation = earlier.as_ref().map_or(next.generation, |earlier| earlier.number());
        let stated = |earlier: &Arc<Generation>| earlier.manifest().message.clone();
        let own = next.message.clone().filter(|_| has_message);
        let message = own.or_else(|| earlier.as_ref().and_then(stated));
        *counts.entry(generation).or_default() += 1;
        insert::<TagEntry>(next, name, Tag { generation, message });
        earlier_tagged.extend(earlier.map(|earlier| (generation, earlier)));
    }
    let mut tag_changes = TagChanges::default();
    // In ascending order, so that garbage which several of them kept is examined once.
    for (generation, change) in counts {
        let [tagged, released] = [true, false].map(|is_tagged| KeptKey { is_tagged, generation });
        let entries = Entries { manifest: next, tables };
        let before = entries.find::<KeptEntry>(&tagged)?;
        let count_before = before.map_or(0, |kept| kept.tag_count);
        let tag_count = count_before.saturating_add_signed(change);
        let earlier = earlier_tagged.remove(&generation);
        let kept = match (before, &earlier) {
            (Some(kept), _) => kept,
            (None, Some(earlier)) => kept_of(earlier.manifest()),
            (None, None) if generation == next.generation => kept_of(next),
            // Only a malformed store has a tag of a generation that is not listed as kept.
            (None, None) => continue,
        };
        match (count_before, tag_count) {
            (_, 0) => {
                remove::<KeptEntry>(next, tables, &tagged)?;
                let kept = KeptGeneration { tag_count, ..kept };
                insert::<KeptEntry>(next, released, kept);
                tag_changes.released.push((generation, kept));
                release_garbage(next, tables, generation)?;
                continue;
            }
            (0, _) => {
                remove::<KeptEntry>(next, tables, &released)?;
                keep_garbage(next, tables, generation, kept.next_storage_id)?;
                tag_changes.gained.extend(earlier);
            }
            _ => {}
        }
        insert::<KeptEntry>(next, tagged, KeptGeneration { tag_count, ..kept });
    }
    Ok(tag_changes)
}

pub(super) fn kept_of(manifest: &Manifest) -> KeptGeneration {
    KeptGeneration {
        time_ns: manifest.time_ns,
        next_storage_id: manifest.next_storage_id,
        table: manifest.table.map(|table| table.generation),
        tag_count: 0,
    }
}

/// Returns the last tagged generation before `generation`. Ids only grow: if it does not need a storage that a later
/// generation dropped, no earlier one does.
pub(super) fn tagged_before(entries: Entries<'_>, generation: u64) -> Result<Option<KeptGeneration>> {
    let before = entries.last_before::<KeptEntry>(&KeptKey { is_tagged: true, generation })?;
    Ok(before.filter(|(key, _)| key.is_tagged).map(|(_, kept)| kept))
}

/// Whether the tags of a generation keep a storage that `dropped` dropped.
pub(crate) fn is_kept(entries: Entries<'_>, id: u64, dropped: u64) -> Result<bool> {
    Ok(tagged_before(entries, dropped)?.is_some_and(|kept| id < kept.next_storage_id))
}

/// Adds a storage that no tensor of the next generation refers to.
pub(super) fn drop_storage(
    next: &mut Manifest,
    tables: Tables<'_>,
    id: u64,
    record: StorageRecord,
) -> Result<()> {
    let dropped = next.generation;
    let is_tagged = is_kept(Entries { manifest: next, tables }, id, dropped)?;
    if_test_omits_step!("tag-keeps-dropped", is_tagged = false);
    insert::<GarbageEntry>(next, GarbageKey { is_tagged, dropped, id }, record);
    Ok(())
}

/// Marks the garbage that a newly tagged generation needs as kept by a tag.
fn keep_garbage(next: &mut Manifest, tables: Tables<'_>, generation: u64, next_id: u64) -> Result<()> {
    if_test_omits_step!("tag-keeps-garbage", return Ok(()));
    let start = GarbageKey { is_tagged: false, dropped: generation.saturating_add(1), id: 0 };
    let found = (Entries { manifest: next, tables }).scan::<GarbageEntry>(Some(&start))?;
    let mut moved = Vec::new();
    for entry in found {
        let (key, record) = entry?;
        if key.is_tagged {
            break;
        }
        if key.id < next_id {
            moved.push((key, record));
        }
    }
    move_garbage(next, tables, moved)
}

/// Marks the garbage that only this generation kept, now without tags, as kept by no tag.
fn release_garbage(next: &mut Manifest, tables: Tables<'_>, generation: u64) -> Result<()> {
    let entries = Entries { manifest: next, tables };
    let before = tagged_before(entries, generation)?.map_or(0, |kept| kept.next_storage_id);
    // What the next tagged generation still has was dropped after it.
    let after = KeptKey { is_tagged: true, generation: generation.saturating_add(1) };
    let after = entries.scan::<KeptEntry>(Some(&after))?.next().transpose()?;
    let last = after.map_or(u64::MAX, |(key, _)| key.generation);
    let start = GarbageKey { is_tagged: true, dropped: generation.saturating_add(1), id: 0 };
    let mut moved = Vec::new();
    for entry in entries.scan::<GarbageEntry>(Some(&start))? {
        let (key, record) = entry?;
        if key.dropped > last {
            break;
        }
        if key.id >= before {
            moved.push((key, record));
        }
    }
    move_garbage(next, tables, moved)
}

/// Moves garbage between that which a tag keeps and that which none does.
fn move_garbage(
    next: &mut Manifest,
    tables: Tables<'_>,
    moved: Vec<(GarbageKey, StorageRecord)>,
) -> Result<()> {
    for (key, record) in moved {
        remove::<GarbageEntry>(next, tables, &key)?;
        insert::<GarbageEntry>(next, GarbageKey { is_tagged: !key.is_tagged, ..key }, record);
    }
    Ok(())
}

/// Finds storages of an earlier generation among the garbage, and removes them from it. The caller holds the generation,
/// so their files exist.
pub(super) fn take_garbage(
    next: &mut Manifest,
    tables: Tables<'_>,
    earlier: u64,
    ids: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, StorageRecord>> {
    let entries = Entries { manifest: next, tables };
    // All garbage of a tagged generation is listed as kept by a tag.
    let is_tagged = entries.find::<KeptEntry>(&KeptKey { is_tagged: true, generation: earlier })?.is_some();
    let (mut found, mut keys) = (BTreeMap::new(), Vec::new());
    for is_tagged in [is_tagged, !is_tagged] {
        // What the generation has was dropped after it, usually soon.
        let start = GarbageKey { is_tagged, dropped: earlier.saturating_add(1), id: 0 };
        let mut garbage = entries.scan::<GarbageEntry>(Some(&start))?;
        while found.len() < ids.len()
            && let Some((key, record)) = garbage.next().transpose()?
            && key.is_tagged == is_tagged
        {
            if ids.contains(&key.id) {
                keys.push(key);
                found.insert(key.id, StorageRecord { is_restored: true, ..record });
            }
        }
    }
    for key in keys {
        remove::<GarbageEntry>(next, tables, &key)?;
    }
    Ok(found)
}
