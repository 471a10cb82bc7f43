//! Detects removed tensors whose bytes other names still refer to, so that removing them does not free all their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use stridemap::{Snapshot, TensorInfo};

use super::plan::info;
use super::shared_bytes::{MAX_COMPARED, MAX_NAMES};
use crate::error::Result;

/// Returns a note about names that refer to bytes of the removed tensors, if there are any. The snapshot is from before
/// they were removed.
pub(crate) fn note(removed: &BTreeSet<String>, snapshot: &Snapshot) -> Result<Option<String>> {
    let mut by_storage: BTreeMap<u64, Vec<(u64, u64, TensorInfo)>> = BTreeMap::new();
    for name in removed {
        let Some(info) = info(snapshot, name)? else { continue };
        if let Some(Range { start, end }) = info.byte_range() {
            by_storage.entry(info.storage_id).or_default().push((start, end, info));
        }
    }
    by_storage.values_mut().for_each(|reaches| reaches.sort_by_key(|(first, ..)| *first));
    let (mut count, mut pairs) = (0, Vec::new());
    for info in snapshot.tensors("")? {
        let info = info?;
        let Some(reaches) = by_storage.get(&info.storage_id).filter(|_| !removed.contains(&info.name)) else {
            continue;
        };
        let Some(Range { start: first, end }) = info.byte_range() else { continue };
        let before = &reaches[..reaches.partition_point(|(start, ..)| *start < end)];
        let mut near = before.iter().rev().filter(|(_, end, _)| *end > first).take(MAX_COMPARED);
        if let Some((.., other)) = near.find(|(.., other)| info.overlaps(other)) {
            count += 1;
            if pairs.len() < MAX_NAMES {
                pairs.push(format!("{:?} still uses bytes of {:?}", info.name, other.name));
            }
        }
    }
    let rest =
        if count > pairs.len() { format!(", and {} more", count - pairs.len()) } else { String::new() };
    let pairs = pairs.join(", ");
    let note = || format!("note: not all bytes of removed tensors are freed: {pairs}{rest}");
    Ok((count > 0).then(note))
}
