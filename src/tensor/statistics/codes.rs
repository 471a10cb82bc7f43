//! Statistics of dtypes of 8 and 16 bits. A code is the bit pattern of an element. The elements of each code are
//! counted, and the rest is computed from the counts.

use std::collections::BTreeMap;

use super::numbers::Moments;
use super::table::Bin;
use super::{BLOCK_ELEMS, Statistics, tally_pieces};
use crate::error::Result;
use crate::storage::zeroed;
use crate::tensor::{Scalar, Tensor};

pub(super) fn statistics(tensor: &Tensor, progress: &mut dyn FnMut(u64)) -> Result<Statistics> {
    let codes = match tensor.dtype().itemsize() {
        1 => codes::<1, 4>(tensor, progress)?,
        _ => codes::<2, 2>(tensor, progress)?,
    };
    let mut values: Vec<(Scalar, f64, u64)> = Vec::new();
    for (code, count) in codes {
        let scalar = Scalar::of(tensor.dtype(), &code.to_le_bytes()[..tensor.dtype().itemsize()]);
        match scalar {
            Scalar::Pair(low, high) => {
                values.extend([low, high].map(|value| (Scalar::Float(value), value, count)));
            }
            Scalar::Bool(value) => values.push((scalar, value.into(), count)),
            Scalar::Int(value) => values.push((scalar, value as f64, count)),
            Scalar::Float(value) | Scalar::Complex(value, _) => {
                // Adding zero makes a negative zero positive.
                values.push((Scalar::Float(value + 0.), value + 0., count));
            }
        }
    }
    let count_of = |is_counted: fn(f64) -> bool| {
        values.iter().filter(|(_, value, _)| is_counted(*value)).map(|(_, _, count)| count).sum()
    };
    let mut statistics = Statistics {
        count: count_of(|_| true),
        nan_count: count_of(f64::is_nan),
        positive_infinity_count: count_of(|value| value == f64::INFINITY),
        negative_infinity_count: count_of(|value| value == f64::NEG_INFINITY),
        zero_count: count_of(|value| value == 0.),
        ..Statistics::default()
    };
    values.retain(|(_, value, _)| value.is_finite());
    // The zeros of both signs have different codes.
    values.sort_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
    values.dedup_by(|(_, value, count), (_, kept, sum)| {
        let is_same = value == kept;
        *sum += if is_same { *count } else { 0 };
        is_same
    });
    statistics.min = values.first().map(|&(value, ..)| value);
    statistics.max = values.last().map(|&(value, ..)| value);
    statistics.bins = values.iter().map(|&(_, value, count)| Bin { lo: value, hi: value, count }).collect();
    statistics.moments = Moments::of_bins(&statistics.bins);
    Ok(statistics)
}

/// Returns the codes of `N` bytes, ascending, and how often each occurs. There are `LANES` counters for each code, used
/// in turn, because a processor can increment a counter only after the previous increment of the same counter.
fn codes<const N: usize, const LANES: usize>(
    tensor: &Tensor,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<(u16, u64)>> {
    let code_of = |bytes: [u8; N]| bytes.iter().rev().fold(0, |high, &byte| high << 8 | u16::from(byte));
    if tensor.numel() <= BLOCK_ELEMS {
        let mut counts = BTreeMap::new();
        for &element in tensor.to_bytes()?.as_chunks::<N>().0 {
            *counts.entry(code_of(element)).or_default() += 1;
        }
        progress(tensor.nbytes() as u64);
        return Ok(counts.into_iter().collect());
    }
    let add = |counts: &mut Vec<u64>, bytes: &[u8], _| {
        for chunk in bytes.as_chunks::<N>().0.chunks(LANES) {
            for (lane, &element) in chunk.iter().enumerate() {
                counts[usize::from(code_of(element)) * LANES + lane] += 1;
            }
        }
        Moments::default()
    };
    let (tallies, _) = tally_pieces(tensor, || zeroed(LANES << (8 * N)), add, progress)?;
    let total = |code: u16| {
        let first = usize::from(code) * LANES;
        tallies.iter().flat_map(|counts: &Vec<u64>| &counts[first..first + LANES]).sum()
    };
    let all = (0..=u16::MAX).take(1 << (8 * N)).map(|code| (code, total(code)));
    Ok(all.filter(|(_, count)| *count > 0).collect())
}
