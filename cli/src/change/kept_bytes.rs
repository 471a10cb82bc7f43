//! Detects removed tensors whose bytes other names still refer to, so that removing them frees nothing.

use std::collections::{BTreeMap, BTreeSet};

use stridemap::{Snapshot, TensorInfo};

use super::shared_bytes::{MAX_COMPARED, MAX_NAMES, byte_range};

/// Returns a note about names that refer to bytes of the removed tensors, if there are any. The snapshot is from before
/// they were removed.
pub(crate) fn note(removed: &BTreeSet<String>, snapshot: &Snapshot) -> stridemap::Result<Option<String>> {
    let mut by_storage: BTreeMap<u64, Vec<(i128, i128, TensorInfo)>> = BTreeMap::new();
    for name in removed {
        let Some(info) = snapshot.tensors(name)?.next().transpose()? else { continue };
        if let Some((first, end)) = range(&info) {
            by_storage.entry(info.storage_id).or_default().push((first, end, info));
        }
    }
    by_storage.values_mut().for_each(|reaches| reaches.sort_by_key(|(first, ..)| *first));
    let (mut count, mut pairs) = (0, Vec::new());
    for info in snapshot.tensors("")? {
        let info = info?;
        let Some(reaches) = by_storage.get(&info.storage_id).filter(|_| !removed.contains(&info.name)) else {
            continue;
        };
        let Some((first, end)) = range(&info) else { continue };
        let before = &reaches[..reaches.partition_point(|(start, ..)| *start < end)];
        let mut near = before.iter().rev().filter(|(_, end, _)| *end > first).take(MAX_COMPARED);
        if let Some((.., other)) = near.find(|(.., other)| overlap(snapshot, &info.name, &other.name)) {
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

fn range(info: &TensorInfo) -> Option<(i128, i128)> {
    byte_range(info.size(), info.stride(), info.storage_offset(), info.dtype.itemsize())
}

/// Whether two tensors whose ranges overlap have a byte in common. Assumes it if one cannot be loaded.
fn overlap(snapshot: &Snapshot, a: &str, b: &str) -> bool {
    match (snapshot.load(a), snapshot.load(b)) {
        (Ok(a), Ok(b)) => a.overlaps(&b),
        _ => true,
    }
}
