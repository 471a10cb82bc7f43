//! Compares the layouts of two tensors of the same dtype and size: their strides and shared storages.

use std::collections::HashMap;

use stridemap::TensorInfo;

use super::values::Side;

/// Returns whether two headers of the same size have equivalent strides. The stride of an axis of size 1 is ignored,
/// and so are all strides if there are no elements.
pub(super) fn have_equal_strides(a: &TensorInfo, b: &TensorInfo) -> bool {
    let mut axes = a.size().iter().zip(a.stride().iter().zip(b.stride()));
    a.numel() == 0 || axes.all(|(&n, (a, b))| n < 2 || a == b)
}

/// Maps storages of A to those of B, by the tensors that refer to them.
#[derive(Default)]
pub(super) struct Sharing {
    /// Maps each storage of A to a storage of B, and to the tensor that first paired them.
    of_a: HashMap<u64, (u64, String)>,
    of_b: HashMap<u64, (u64, String)>,
}

impl Sharing {
    /// Adds a pair of compared tensors. If they share a storage with an earlier tensor on one side but not on the
    /// other, returns the side that shares and the earlier tensor's name.
    pub(super) fn add(&mut self, a: &TensorInfo, b: &TensorInfo) -> Option<(Side, String)> {
        let maps = [
            (Side::A, &mut self.of_a, (a.storage_id, b.storage_id)),
            (Side::B, &mut self.of_b, (b.storage_id, a.storage_id)),
        ];
        let mut mismatch = None;
        for (side, map, (here, there)) in maps {
            let (counterpart, name) = map.entry(here).or_insert_with(|| (there, a.name.clone()));
            if *counterpart != there && mismatch.is_none() {
                mismatch = Some((side, name.clone()));
            }
        }
        mismatch
    }
}
