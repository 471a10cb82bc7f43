//! What the page says about elements: statistics, heat maps and duplicates.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::{Value, json};
use stridemap::{Result, Scalar, Statistics, Tensor, TensorInfo};

use super::heat::HeatMap;
use crate::error::Error;
use crate::input::Input;
use crate::look::is_constant;
use crate::names::Named as _;
use crate::pieces::{Cut, Pieces, steady};

/// The number of bins of a histogram.
const BIN_COUNT: usize = 24;

/// The limit on the bytes of all heat maps in a page. The largest tensors get theirs first.
const MAX_HEAT_BYTES: usize = 4 << 20;

/// The limit on the steps of all searches for bytes that equal tensors share.
const MAX_STEPS: u64 = 10_000_000;

/// How many elements of two tensors are compared at a time.
const PIECE_ELEMS: usize = 1 << 20;

/// What the page has about the elements of one tensor.
pub(super) struct TensorStatistics {
    /// The last cells of its row: the minimum, the maximum, the mean, the deviation, the numbers of zeros, NaN and
    /// infinities, and the histogram, which is a digit in base 36 for each bin: the height of its bar. The fullest bin
    /// has the digit `z`. The histogram is empty if no element is finite.
    pub(super) cells: Vec<Value>,
    /// The words for what is unusual.
    pub(super) notes: Vec<&'static str>,
    /// Whether an element is finite.
    has_finite: bool,
}

/// What was read of all tensors.
#[derive(Default)]
pub(super) struct Elements {
    /// The statistics of each tensor; `None` if it was not read, or could not be read.
    pub(super) statistics: Vec<Option<TensorStatistics>>,
    pub(super) heat_maps: Vec<(usize, HeatMap)>,
    /// For each duplicate, the first tensor that has the same elements and shares no bytes with it.
    pub(super) duplicates: HashMap<usize, usize>,
    /// The tensors that could not be read, and why.
    pub(super) failed: Vec<(usize, String)>,
    /// The number of tensors that were skipped because of the limit.
    pub(super) unread_count: usize,
    /// Whether some possible duplicates were not compared, because of the limit.
    pub(super) is_search_limited: bool,
}

impl Elements {
    /// Reads the tensors at the positions in `read`. A tensor that cannot be read is added to `failed`. Then compares
    /// tensors with equal statistics, which reads at most `max_bytes` more. `progress` is called with the number of
    /// bytes read for statistics since its last call, and with 0 while heat maps are made and tensors are compared, so
    /// that it can end the command.
    pub(super) fn read(
        input: &Input,
        infos: &[TensorInfo],
        read: &HashSet<usize>,
        max_bytes: u64,
        mut progress: impl FnMut(u64),
    ) -> Self {
        let mut elements = Elements::default();
        let mut by_statistics = HashMap::<u64, Vec<usize>>::new();
        let drawn = largest(infos, read);
        for (index, info) in infos.iter().enumerate() {
            if !read.contains(&index) {
                elements.unread_count += 1;
                elements.statistics.push(None);
                continue;
            }
            let found = input.load(&info.name).and_then(|tensor| {
                let (tensor, _guard) = steady(&tensor)?;
                let (statistics, key) = TensorStatistics::of(&tensor, &mut progress)?;
                // The elements are read again while they are likely to be in memory.
                let is_drawn = statistics.has_finite && drawn.contains(&index);
                let map = if is_drawn { HeatMap::of(&tensor, || progress(0))? } else { None };
                Ok((statistics, key, map))
            });
            match found {
                Ok((statistics, key, map)) => {
                    elements.heat_maps.extend(map.map(|map| (index, map)));
                    if let Some(key) = key {
                        by_statistics.entry(key).or_default().push(index);
                    }
                    elements.statistics.push(Some(statistics));
                }
                Err(e) => {
                    elements.failed.push((index, Error::from(e).to_string()));
                    elements.statistics.push(None);
                }
            }
        }
        let mut groups: Vec<Vec<usize>> =
            by_statistics.into_values().filter(|alike| alike.len() > 1).collect();
        groups.sort_unstable();
        let (mut left_bytes, mut steps_left) = (max_bytes, MAX_STEPS);
        for alike in groups {
            let alike: Vec<_> = alike.into_iter().filter_map(|at| Some((at, infos.get(at)?))).collect();
            elements.find_duplicates(input, &alike, (&mut left_bytes, &mut steps_left), &mut progress);
        }
        elements
    }

    /// Finds duplicates among tensors with the same statistics. Tensors that share bytes are not duplicates. A tensor
    /// is compared with at most 64 others.
    fn find_duplicates(
        &mut self,
        input: &Input,
        alike: &[(usize, &TensorInfo)],
        (left_bytes, steps_left): (&mut u64, &mut u64),
        progress: &mut impl FnMut(u64),
    ) {
        let mut different = Vec::<(usize, &TensorInfo)>::new();
        for &(index, info) in alike {
            let same = different.iter().find(|(_, first)| {
                if first.header.dtype() != info.header.dtype() || first.header.size() != info.header.size() {
                    return false;
                }
                let overlap = first.overlaps_within(info, steps_left);
                self.is_search_limited |= overlap.is_none();
                overlap == Some(false) && self.have_same_bytes(input, [first, info], left_bytes, progress)
            });
            match same {
                Some(&(first, _)) => drop(self.duplicates.insert(index, first)),
                None if different.len() < 64 => different.push((index, info)),
                None => {}
            }
        }
    }

    /// Returns whether two tensors have the same bytes. Returns false if they cannot be read, or if that would take
    /// more than `left_bytes`.
    fn have_same_bytes(
        &mut self,
        input: &Input,
        infos: [&TensorInfo; 2],
        left_bytes: &mut u64,
        progress: &mut impl FnMut(u64),
    ) -> bool {
        let mut compare = || -> Result<bool> {
            let tensors = infos.map(|info| steady(&input.load(&info.name)?)).into_iter();
            let (tensors, _guards): (Vec<_>, Vec<_>) =
                tensors.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            for piece in Pieces::of(tensors, PIECE_ELEMS, Cut::Outermost) {
                let views = piece?.views;
                progress(0);
                let read_bytes = views.iter().map(|view| view.nbytes() as u64).sum();
                let Some(left) = left_bytes.checked_sub(read_bytes) else {
                    self.is_search_limited = true;
                    return Ok(false);
                };
                *left_bytes = left;
                let bytes: Vec<Vec<u8>> = views.iter().map(Tensor::to_bytes).collect::<Result<_>>()?;
                if !matches!(&bytes[..], [one, other] if one == other) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        compare().unwrap_or(false)
    }
}

/// Returns the positions of the tensors to read, and the number of their bytes. The tensors are taken in the given order,
/// and one that would exceed the limit is skipped. If the limit is 0, all tensors are skipped.
pub(super) fn tensors_to_read(max_bytes: u64, infos: &[TensorInfo]) -> (HashSet<usize>, u64) {
    let mut left_bytes = max_bytes;
    let mut is_read = |info: &TensorInfo| {
        let left = left_bytes.checked_sub(info.header.nbytes() as u64).filter(|_| max_bytes > 0);
        left_bytes = left.unwrap_or(left_bytes);
        left.is_some()
    };
    let read = infos.iter().enumerate().filter(|(_, info)| is_read(info)).map(|(index, _)| index).collect();
    (read, max_bytes - left_bytes)
}

/// Returns the positions of the tensors that may get a heat map.
fn largest(infos: &[TensorInfo], read: &HashSet<usize>) -> HashSet<usize> {
    let mut largest: Vec<(usize, &TensorInfo)> =
        infos.iter().enumerate().filter(|(index, _)| read.contains(index)).collect();
    largest.sort_by_key(|&(index, info)| (Reverse(info.header.numel()), index));
    let mut left_bytes = MAX_HEAT_BYTES;
    let sized = largest.into_iter().filter_map(|(index, info)| Some((index, HeatMap::size_bytes(info)?)));
    let fitting = sized.map_while(|(index, size_bytes)| {
        left_bytes = left_bytes.checked_sub(size_bytes)?;
        Some(index)
    });
    fitting.collect()
}

impl TensorStatistics {
    /// Returns the statistics, and a number that is equal for tensors with equal statistics. There is no such number if
    /// all elements are equal.
    fn of(tensor: &Tensor, progress: &mut impl FnMut(u64)) -> Result<(Self, Option<u64>)> {
        let statistics = tensor.statistics(progress)?;
        let Statistics { count, zero_count, nan_count, min, max, .. } = statistics;
        let infinity_count = statistics.positive_infinity_count + statistics.negative_infinity_count;
        let counts = statistics.histogram(BIN_COUNT);
        let is_zero = count > 0 && zero_count == count;
        let is_constant = is_constant(tensor, &statistics);
        let numbers = [min.and_then(number), max.and_then(number), statistics.mean(), statistics.std()];
        let mut key = DefaultHasher::new();
        let bits = numbers.map(|number| number.map(f64::to_bits));
        (bits, &counts, count, nan_count, infinity_count).hash(&mut key);
        let numbers = numbers.iter().map(|number| json!(number.map(shortened)));
        let counts_and_bins =
            [json!(zero_count), json!(nan_count), json!(infinity_count), json!(digits(&counts))];
        let notes = [
            ("nan", nan_count > 0),
            ("infinite", infinity_count > 0),
            ("zero", is_zero),
            ("constant", is_constant && !is_zero),
        ];
        let found = TensorStatistics {
            cells: numbers.chain(counts_and_bins).collect(),
            notes: notes.into_iter().filter_map(|(note, applies)| applies.then_some(note)).collect(),
            has_finite: statistics.finite_count() > 0,
        };
        Ok((found, (!is_constant && !is_zero && count > 1).then(|| key.finish())))
    }
}

/// Rounds to six digits, which are enough for a page.
fn shortened(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

fn number(scalar: Scalar) -> Option<f64> {
    match scalar {
        Scalar::Bool(value) => Some(f64::from(u8::from(value))),
        Scalar::Int(value) => Some(value as f64),
        Scalar::Float(value) => Some(value),
        _ => None,
    }
}

fn digits(counts: &[u64]) -> String {
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let digit = |&count: &u64| {
        // A bin that is not empty is at least 1.
        let height = (u128::from(count) * 35).div_ceil(u128::from(most)) as u32;
        char::from_digit(height, 36).unwrap_or('0')
    };
    if counts.iter().all(|&count| count == 0) { String::new() } else { counts.iter().map(digit).collect() }
}
