//! Which tensors share which bytes of a storage.

use std::cmp::Reverse;
use std::ops::Range;

use serde::Serialize;
use serde_json::{Value, json};
use stridemap::{StorageInfo, TensorInfo};

use super::info::storage_record;
use crate::by_storage::by_storage;
use crate::error::Result;
use crate::input::Input;
use crate::ui::{counted, joined};

/// The maximum number of earlier tensors that a tensor is compared with. If there are more, a half of this number are
/// the nearest, and at least a quarter are the widest of the others.
const MAX_COMPARED: usize = 64;

/// The limit on the steps of all searches for shared bytes, which take about a fifth of a second, and how many more each
/// tensor adds. Ordinary tensors need far fewer.
pub(crate) const MAX_STEPS: u64 = 10_000_000;
const STEPS_PER_TENSOR: u64 = 100;

/// A storage, and its tensors in order of their first byte. Tensors without elements come last.
pub(crate) struct StorageMap {
    pub(crate) storage: StorageInfo,
    pub(crate) usage: StorageUsage,
    pub(crate) tensors: Vec<PlacedTensor>,
}

/// How many bytes of a storage some tensor reaches. The sum of the three numbers is the length of the storage.
#[derive(Serialize)]
pub(crate) struct StorageUsage {
    pub(crate) reachable_bytes: u64,
    /// Bytes that no tensor reaches, but which a compaction keeps.
    pub(crate) padding_bytes: u64,
    pub(crate) unreachable_bytes: u64,
    /// If the tensors reach too many separate runs of bytes to count, `reachable_bytes` includes the padding.
    pub(crate) is_exact: bool,
}

impl StorageUsage {
    pub(crate) fn of(storage: &StorageInfo, tensors: &[TensorInfo]) -> stridemap::Result<Self> {
        let compacted_bytes = storage.compacted_bytes(tensors)?;
        let reached = storage.reached_bytes(tensors)?;
        let reachable_bytes = reached.unwrap_or(compacted_bytes);
        Ok(StorageUsage {
            reachable_bytes,
            padding_bytes: compacted_bytes.saturating_sub(reachable_bytes),
            unreachable_bytes: storage.size_bytes.saturating_sub(compacted_bytes),
            is_exact: reached.is_some(),
        })
    }
}

/// A tensor on its storage.
pub(crate) struct PlacedTensor {
    pub(crate) info: TensorInfo,
    /// Empty for a tensor without elements.
    pub(crate) range: Range<u64>,
    /// The positions, in the list of tensors, of the tensors that were found to share a byte with this one.
    pub(crate) sharers: Vec<usize>,
    /// Whether it could not be found out for a tensor whether it shares a byte with this one.
    pub(crate) is_undetermined: bool,
}

impl StorageMap {
    /// Reads the maps of all storages, in ascending order of id.
    pub(crate) fn read_all(input: &Input) -> Result<Vec<StorageMap>> {
        let mut by_storage = by_storage(input.tensors("")?)?;
        let mut maps = Vec::new();
        let mut steps_left = MAX_STEPS;
        for storage in input.storages() {
            let storage = storage?;
            let infos = by_storage.remove(&storage.id).unwrap_or_default();
            let usage = StorageUsage::of(&storage, &infos)?;
            maps.push(StorageMap { storage, usage, tensors: placed_tensors(infos, &mut steps_left) });
        }
        Ok(maps)
    }

    /// Returns the storage and its usage as JSON.
    pub(crate) fn record(&self, input: &Input) -> Value {
        joined(storage_record(&self.storage, input), json!(self.usage))
    }

    /// Returns how many tensors there are of which it could not be found out whether they share bytes.
    pub(crate) fn undetermined_count(&self) -> u64 {
        self.tensors.iter().filter(|tensor| tensor.is_undetermined).count() as u64
    }

    /// Returns the names of the tensors that are connected by shared bytes: at least two in each group.
    pub(crate) fn groups(&self) -> Vec<Vec<&str>> {
        let mut is_seen = vec![false; self.tensors.len()];
        let mut groups = Vec::new();
        for first in 0..self.tensors.len() {
            let (mut group, mut reached) = (Vec::new(), vec![first]);
            while let Some(index) = reached.pop() {
                if let (Some(is_seen), Some(tensor)) = (is_seen.get_mut(index), self.tensors.get(index))
                    && !std::mem::replace(is_seen, true)
                {
                    group.push((index, tensor.info.name.as_str()));
                    reached.extend(&tensor.sharers);
                }
            }
            if group.len() > 1 {
                group.sort_unstable();
                groups.push(group.into_iter().map(|(_, name)| name).collect());
            }
        }
        groups
    }
}

/// Says that it could not be found out of this many tensors whether they share bytes.
pub(crate) fn undetermined(count: u64) -> String {
    let tensors = counted(count, "tensor");
    format!("whether {tensors} share bytes was not determined: their strides are unusual")
}

/// Finds the tensors of a storage that share bytes. They are in ascending order of name.
pub(crate) fn placed_tensors(infos: Vec<TensorInfo>, steps_left: &mut u64) -> Vec<PlacedTensor> {
    let placed = |info: TensorInfo| PlacedTensor {
        range: info.header.byte_range().unwrap_or_default(),
        sharers: Vec::new(),
        is_undetermined: false,
        info,
    };
    let mut tensors: Vec<PlacedTensor> = infos.into_iter().map(placed).collect();
    // The names are in ascending order, and the sort is stable.
    tensors.sort_by_key(|tensor| (tensor.range.is_empty(), tensor.range.start, Reverse(tensor.range.end)));
    // The tensors whose ranges may reach the next one.
    let mut open = Vec::<usize>::new();
    for index in 0..tensors.len() {
        let (before, rest) = tensors.split_at_mut(index);
        let [tensor, ..] = rest else { break };
        open.retain(|&other| before.get(other).is_some_and(|other| other.range.end > tensor.range.start));
        *steps_left = steps_left.saturating_add(STEPS_PER_TENSOR);
        for &other_index in &open {
            let Some(other) = before.get_mut(other_index) else { continue };
            let found = match *steps_left {
                0 => None,
                _ => other.info.overlaps_within(&tensor.info, steps_left),
            };
            match found {
                Some(false) => {}
                Some(true) => {
                    other.sharers.push(index);
                    tensor.sharers.push(other_index);
                }
                None => (other.is_undetermined, tensor.is_undetermined) = (true, true),
            }
        }
        open.push(index);
        if open.len() > MAX_COMPARED {
            open = compared(&open, &tensors);
        }
    }
    tensors.iter_mut().for_each(|tensor| tensor.sharers.sort_unstable());
    tensors
}

/// Returns the open tensors that the next ones are compared with: three quarters of the most, in ascending order.
fn compared(open: &[usize], tensors: &[PlacedTensor]) -> Vec<usize> {
    let (far, near) = open.split_at(open.len().saturating_sub(MAX_COMPARED / 2));
    let mut widest = far.to_vec();
    if far.len() > MAX_COMPARED / 4 {
        // A tensor that encloses many others begins far before most of them.
        let width = |&index: &usize| {
            Reverse(tensors.get(index).map(|PlacedTensor { range, .. }| range.end - range.start))
        };
        widest.select_nth_unstable_by_key(MAX_COMPARED / 4, width);
        widest.truncate(MAX_COMPARED / 4);
        widest.sort_unstable();
    }
    [&widest, near].concat()
}
