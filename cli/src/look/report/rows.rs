//! The rows of the table of tensors.

use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};
use stridemap::TensorInfo;

use super::elements::TensorStatistics;
use crate::look::sharing::PlacedTensor;

/// The maximum number of runs of bytes that are written for a tensor.
const MAX_RUNS: u64 = 256;

/// The number of cells for the statistics of a tensor.
const STATISTICS_CELLS: usize = 8;

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
pub(super) struct Place<'a> {
    /// The position of the storage in the page's list.
    pub(super) storage: usize,
    pub(super) tensor: &'a PlacedTensor,
    /// The positions, in the page's list, of tensors that share bytes with the tensor.
    pub(super) sharers: Vec<usize>,
}

impl Row<'_> {
    /// Returns the words for what is unusual about the tensor.
    pub(super) fn notes(&self) -> Vec<&'static str> {
        let mut notes = self.statistics.map_or(Vec::new(), |statistics| statistics.notes.clone());
        let others = [
            ("shared", self.place.as_ref().is_some_and(|place| !place.sharers.is_empty())),
            ("duplicate", self.is_duplicate),
            ("empty", self.info.header.numel() == 0),
        ];
        notes.extend(others.into_iter().filter_map(|(note, applies)| applies.then_some(note)));
        notes
    }
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (info, header, place) = (self.info, &self.info.header, self.place.as_ref());
        let range = place.map(|place| &place.tensor.range).filter(|range| !range.is_empty());
        // A contiguous tensor is one run.
        let runs = range.filter(|_| !header.is_contiguous()).map(|range| {
            let runs = info.byte_runs((range.end - range.start) / MAX_RUNS);
            runs.into_iter().map(|run| [run.start, run.end]).collect::<Vec<_>>()
        });
        let mut row = serializer.serialize_seq(None)?;
        row.serialize_element(&info.name)?;
        row.serialize_element(&self.dtype)?;
        row.serialize_element(header.size())?;
        row.serialize_element(&header.numel())?;
        row.serialize_element(&header.nbytes())?;
        row.serialize_element(&place.map(|place| place.storage))?;
        row.serialize_element(&header.storage_offset())?;
        row.serialize_element(&(!header.is_contiguous()).then_some(header.stride()))?;
        row.serialize_element(&header.dim_names())?;
        row.serialize_element(&range.map(|range| [range.start, range.end]))?;
        row.serialize_element(&runs)?;
        row.serialize_element(&place.map(|place| &place.sharers).filter(|sharers| !sharers.is_empty()))?;
        row.serialize_element(&Some(self.notes()).filter(|notes| !notes.is_empty()))?;
        match self.statistics {
            Some(statistics) => statistics.cells.iter().try_for_each(|cell| row.serialize_element(cell))?,
            None => (0..STATISTICS_CELLS).try_for_each(|_| row.serialize_element(&()))?,
        }
        row.end()
    }
}
