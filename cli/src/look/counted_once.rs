//! The totals of tensors if those that share bytes are counted once.

use stridemap::TensorInfo;

use super::modules::Totals;
use super::sharing::{PlacedTensor, StorageMap};
use crate::error::Result;
use crate::input::Input;

/// Finds the totals of the tensors that share no byte with an earlier tensor. The order is that of their first bytes; of
/// tensors with the same first byte, the longest comes first.
#[derive(Default)]
pub(crate) struct CountedOnce {
    all: Totals,
    /// The storage of each tensor, its first byte, and the end of its last one.
    ranges: Vec<(u64, u64, u64)>,
}

impl CountedOnce {
    pub(crate) fn add(&mut self, info: &TensorInfo) {
        self.all.add(info);
        self.ranges.extend(info.header.byte_range().map(|range| (info.storage_id, range.start, range.end)));
    }

    /// Whether the ranges of two tensors overlap, from the first byte to the last.
    pub(crate) fn may_share_bytes(&mut self) -> bool {
        self.ranges.sort_unstable();
        let is_overlap = |pair: &[(u64, u64, u64)]| match *pair {
            [(storage, _, end), (next_storage, next, _)] => storage == next_storage && next < end,
            _ => false,
        };
        self.ranges.windows(2).any(is_overlap)
    }

    /// Returns the totals, and how many tensors there are of which it could not be found out whether they share bytes.
    /// `maps` are those of all storages, if the caller has read them. `input` has the tensors that were added.
    pub(super) fn totals(mut self, input: &Input, maps: Option<&[StorageMap]>) -> Result<(Totals, u64)> {
        if !self.may_share_bytes() {
            return Ok((self.all, 0));
        }
        match maps {
            Some(maps) => Ok(of_first(maps)),
            None => Ok(of_first(&StorageMap::read_all(input)?)),
        }
    }
}

fn of_first(maps: &[StorageMap]) -> (Totals, u64) {
    let (mut totals, mut undetermined) = (Totals::default(), 0);
    for map in maps {
        let is_first = |(index, tensor): &(usize, &PlacedTensor)| {
            tensor.sharers.first().is_none_or(|first| first > index)
        };
        map.tensors.iter().enumerate().filter(is_first).for_each(|(_, tensor)| totals.add(&tensor.info));
        undetermined += map.undetermined_count();
    }
    (totals, undetermined)
}
