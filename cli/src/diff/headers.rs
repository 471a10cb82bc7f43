//! What two headers say of how their tensors lie: nothing of what the tensors are.

use std::collections::HashMap;

use stridemap::TensorInfo;

use super::values::Side;

/// Whether two headers of one size step through their storages alike. The stride of an axis of size 1 says nothing, and
/// where there are no elements none does.
pub(super) fn have_one_stride(a: &TensorInfo, b: &TensorInfo) -> bool {
    let mut axes = a.size().iter().zip(a.stride().iter().zip(b.stride()));
    a.numel() == 0 || axes.all(|(&n, (a, b))| n < 2 || a == b)
}

/// Which storages of A are those of B: told by the tensors that stand on them.
#[derive(Default)]
pub(super) struct Sharing {
    /// By storage of A: that of B, and the tensor that said so.
    of_a: HashMap<u64, (u64, String)>,
    of_b: HashMap<u64, (u64, String)>,
}

impl Sharing {
    /// Takes two tensors that are compared. Gives a tensor that shares its storage with this one in one of the two alone.
    pub(super) fn add(&mut self, a: &TensorInfo, b: &TensorInfo) -> Option<(Side, String)> {
        let maps = [
            (Side::A, &mut self.of_a, (a.storage_id, b.storage_id)),
            (Side::B, &mut self.of_b, (b.storage_id, a.storage_id)),
        ];
        let mut apart = None;
        for (side, map, (here, there)) in maps {
            let (counterpart, name) = map.entry(here).or_insert_with(|| (there, a.name.clone()));
            if *counterpart != there && apart.is_none() {
                apart = Some((side, name.clone()));
            }
        }
        apart
    }
}
