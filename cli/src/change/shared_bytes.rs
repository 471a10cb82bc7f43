//! Detects tensors that share bytes: an exported file stores such bytes once for each tensor.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use indicatif::HumanBytes;
use stridemap::TensorInfo;

use crate::ui::counted;

/// The maximum number of pairs of tensors that a note names.
const MAX_PAIRS: usize = 4;

/// The maximum number of tensors that a tensor is compared with.
const MAX_COMPARED: usize = 64;

/// The limit on the steps of all searches for shared bytes. After that, or for strides that are too unusual, tensors
/// count as apart.
const MAX_STEPS: u64 = 10_000_000;

/// Returns a note about tensors that share bytes, if there are any.
pub(crate) fn note(tensors: &[TensorInfo]) -> Option<String> {
    let mut by_storage: BTreeMap<u64, Vec<Reach<'_>>> = BTreeMap::new();
    for tensor in tensors {
        if let Some(reach) = Reach::of(tensor) {
            by_storage.entry(tensor.storage_id).or_default().push(reach);
        }
    }
    let mut steps_left = MAX_STEPS;
    let (mut count, mut more_bytes, mut pairs) = (0u64, 0u64, Vec::new());
    for mut reaches in by_storage.into_values() {
        reaches.sort_by_key(|reach| (reach.first, Reverse(reach.end), &reach.tensor.name));
        // Tensors that do not overlap each other, in order of their first byte.
        let mut apart: Vec<Reach<'_>> = Vec::new();
        for reach in reaches {
            apart.retain(|other| other.end > reach.first);
            let mut meets = |other: &&Reach<'_>| {
                other.tensor.overlaps_within(reach.tensor, &mut steps_left) == Some(true)
            };
            let other = apart.iter().rev().take(MAX_COMPARED).find(&mut meets);
            let Some(other) = other else {
                apart.push(reach);
                continue;
            };
            count += 1;
            more_bytes = more_bytes.saturating_add(reach.tensor.nbytes().min(other.tensor.nbytes()) as u64);
            if pairs.len() < MAX_PAIRS {
                pairs.push(format!("{:?} with {:?}", reach.tensor.name, other.tensor.name));
            }
        }
    }
    let rest = count - pairs.len() as u64;
    let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
    (count > 0).then(|| {
        format!(
            "note: {} bytes with another, so the file stores them twice (up to {} extra): {}{rest}",
            if count == 1 {
                "1 tensor shares".to_owned()
            } else {
                format!("{} share", counted(count, "tensor"))
            },
            HumanBytes(more_bytes),
            pairs.join(", ")
        )
    })
}

/// The range of a storage from a tensor's first byte to its last.
struct Reach<'a> {
    tensor: &'a TensorInfo,
    first: u64,
    end: u64,
}

impl<'a> Reach<'a> {
    /// Returns the range of a tensor, or `None` if it has no elements.
    fn of(tensor: &'a TensorInfo) -> Option<Self> {
        let Range { start, end } = tensor.byte_range()?;
        Some(Reach { tensor, first: start, end })
    }
}
