//! The rows of the table of tensors.

use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};
use stridemap::TensorInfo;

use super::elements::TensorStatistics;
use crate::look::sharing::PlacedTensor;

/// The maximum number of runs of bytes that are written for a tensor.
const MAX_RUNS: u64 = 256;

/// The maximum number of sharing tensors that are written for a tensor.
const MAX_SHARERS: usize = 64;

/// What the page has about a tensor. It is written as a list, because the names of the values would repeat for each
/// tensor. The script of the page reads the values in the same order.
pub(super) struct Row<'a> {
    pub(super) info: &'a TensorInfo,
    /// The position of the dtype in the page's list.
    pub(super) dtype: usize,
    /// `None` for a tensor without a storage, which has no elements.
    pub(super) place: Option<Place<'a>>,
    pub(super) statistics: Option<&'a TensorStatistics>,
    pub(super) is_duplicate: bool,
}

/// The place of a tensor on its storage.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The position of the storage in the page's list.
    pub(super) storage: usize,
    pub(super) tensor: &'a PlacedTensor,
    /// The positions, in the page's list, of the tensors of the storage.
    pub(super) positions: &'a [usize],
}

impl Row<'_> {
    /// Returns the words for what is unusual about the tensor.
    pub(super) fn notes(&self) -> Vec<&'static str> {
        let has = |test: fn(&TensorStatistics) -> bool| self.statistics.is_some_and(test);
        [
            ("nan", has(|statistics| statistics.nan_count > 0)),
            ("infinite", has(|statistics| statistics.infinity_count > 0)),
            ("zero", has(|statistics| statistics.is_zero)),
            ("constant", has(|statistics| statistics.is_constant && !statistics.is_zero)),
            ("shared", self.place.is_some_and(|place| !place.tensor.sharers.is_empty())),
            ("duplicate", self.is_duplicate),
            ("empty", self.info.header.numel() == 0),
        ]
        .into_iter()
        .filter_map(|(note, applies)| applies.then_some(note))
        .collect()
    }
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (info, statistics) = (self.info, self.statistics);
        let range = self.place.map(|place| &place.tensor.range).filter(|range| !range.is_empty());
        // A contiguous tensor is one run.
        let runs = range.filter(|_| !info.header.is_contiguous()).map(|range| {
            let runs = info.byte_runs((range.end - range.start) / MAX_RUNS);
            runs.into_iter().map(|run| [run.start, run.end]).collect::<Vec<_>>()
        });
        let sharers = self.place.map(|place| {
            let sharers = place.tensor.sharers.iter().take(MAX_SHARERS);
            sharers.filter_map(|&other| place.positions.get(other)).collect::<Vec<_>>()
        });
        let short = |number: fn(&TensorStatistics) -> Option<f64>| statistics.and_then(number).map(shortened);
        let mut row = serializer.serialize_seq(None)?;
        row.serialize_element(&info.name)?;
        row.serialize_element(&self.dtype)?;
        row.serialize_element(info.header.size())?;
        row.serialize_element(&info.header.numel())?;
        row.serialize_element(&info.header.nbytes())?;
        row.serialize_element(&self.place.map(|place| place.storage))?;
        row.serialize_element(&info.header.storage_offset())?;
        row.serialize_element(&(!info.header.is_contiguous()).then_some(info.header.stride()))?;
        row.serialize_element(&info.header.dim_names())?;
        row.serialize_element(&range.map(|range| [range.start, range.end]))?;
        row.serialize_element(&runs)?;
        row.serialize_element(&sharers.filter(|sharers| !sharers.is_empty()))?;
        row.serialize_element(&Some(self.notes()).filter(|notes| !notes.is_empty()))?;
        for number in [
            short(|statistics| statistics.min),
            short(|statistics| statistics.max),
            short(|statistics| statistics.mean),
            short(|statistics| statistics.std),
        ] {
            row.serialize_element(&number)?;
        }
        row.serialize_element(&statistics.map(|statistics| statistics.zero_count))?;
        row.serialize_element(&statistics.map(|statistics| statistics.nan_count))?;
        row.serialize_element(&statistics.map(|statistics| statistics.infinity_count))?;
        row.serialize_element(&statistics.map(|statistics| &statistics.histogram))?;
        row.end()
    }
}

/// Rounds to six digits, which are enough for a page.
fn shortened(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}
