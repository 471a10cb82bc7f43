//! Statistics of dtypes of 32 bits and more: numbers are counted by range, and their moments are computed block by block.

use stridemap_format::DType;

use super::table::{Bin, Table};
use super::{BLOCK, Statistics, tally};
use crate::error::Result;
use crate::tensor::{Scalar, Tensor};

/// How many sums are computed side by side, so that none waits for the last addition.
const LANES: usize = 8;

/// The number of elements, their mean, and the sum of the squares of their distances from it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: f64,
    pub(super) squares: f64,
}

impl Moments {
    /// Adds the moments of other elements, by the formula of Chan, Golub and LeVeque.
    pub(super) fn merge(&mut self, other: &Moments) {
        if other.count == 0. {
            return;
        }
        let count = self.count + other.count;
        let distance = other.mean - self.mean;
        self.mean += distance * (other.count / count);
        self.squares += other.squares + distance * distance * (self.count * (other.count / count));
        self.count = count;
    }

    /// Returns the moments of bins that each hold one value.
    pub(super) fn of_bins(bins: &[Bin]) -> Self {
        let count = bins.iter().map(|bin| bin.count as f64).sum();
        let mean = bins.iter().map(|bin| bin.lo * bin.count as f64).sum::<f64>() / f64::max(count, 1.);
        let squares = bins.iter().map(|bin| (bin.lo - mean).powi(2) * bin.count as f64).sum();
        Moments { count, mean, squares }
    }

    fn of_block<T: Number>(block: &[T]) -> Self {
        let count = block.len() as f64;
        let mean = sum(block, |number| number) / count;
        let squares = sum(block, |number| (number - mean) * (number - mean));
        Moments { count, mean, squares }
    }
}

/// Returns the sum of a function of each number.
fn sum<T: Number>(block: &[T], of: impl Fn(f64) -> f64) -> f64 {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let mut sums = [0.; LANES];
    for chunk in chunks {
        for (sum, &number) in sums.iter_mut().zip(chunk) {
            *sum += of(number.to_f64());
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&number| of(number.to_f64())).sum::<f64>()
}

/// Returns the lowest and the highest number of a block that is not empty.
fn range<T: Number>(block: &[T]) -> (T, T) {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let first = block.first().copied().unwrap_or_default();
    let (mut lows, mut highs) = ([first; LANES], [first; LANES]);
    for chunk in chunks {
        for ((low, high), &number) in lows.iter_mut().zip(&mut highs).zip(chunk) {
            *low = if number < *low { number } else { *low };
            *high = if number > *high { number } else { *high };
        }
    }
    let all = || lows.iter().chain(&highs).chain(rest);
    all().fold((first, first), |(low, high), &number| {
        (if number < low { number } else { low }, if number > high { number } else { high })
    })
}

/// The type of a number that is not complex.
trait Number: Copy + Default + PartialOrd + Send {
    /// The number of counters of a table.
    const COUNTERS: usize;

    fn to_f64(self) -> f64;
    fn is_nan(self) -> bool;
    fn is_finite(self) -> bool;
    /// Returns an integer in the order of the numbers. The zeros of both signs have the same.
    fn key(self) -> u64;
    /// Returns the number with this key.
    fn of_key(key: u64) -> Self;
    fn to_scalar(self) -> Scalar;
}

macro_rules! floats {
    ($($type:ty, $bits:ty, $signed:ty, $counters:expr;)*) => {$(
        impl Number for $type {
            const COUNTERS: usize = $counters;

            fn to_f64(self) -> f64 {
                self.into()
            }

            fn is_nan(self) -> bool {
                self.is_nan()
            }

            fn is_finite(self) -> bool {
                self.is_finite()
            }

            fn key(self) -> u64 {
                // Adding zero makes a negative zero positive.
                let bits = (self + 0.).to_bits();
                let sign = (bits as $signed >> (<$bits>::BITS - 1)) as $bits;
                (bits ^ (sign | 1 << (<$bits>::BITS - 1))).into()
            }

            fn of_key(key: u64) -> Self {
                let key = key as $bits;
                let is_negative = key >> (<$bits>::BITS - 1) == 0;
                <$type>::from_bits(if is_negative { !key } else { key ^ 1 << (<$bits>::BITS - 1) })
            }

            fn to_scalar(self) -> Scalar {
                self.into()
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty, $bits:ty, $counters:expr;)*) => {$(
        impl Number for $type {
            const COUNTERS: usize = $counters;

            fn to_f64(self) -> f64 {
                self as f64
            }

            fn is_nan(self) -> bool {
                false
            }

            fn is_finite(self) -> bool {
                true
            }

            fn key(self) -> u64 {
                // The lowest number has the key 0.
                (self as $bits ^ <$type>::MIN as $bits).into()
            }

            fn of_key(key: u64) -> Self {
                (key as $bits ^ <$type>::MIN as $bits) as $type
            }

            fn to_scalar(self) -> Scalar {
                self.into()
            }
        }
    )*};
}

floats! { f32, u32, i32, 1 << 16; f64, u64, i64, 1 << 17; }
integers! { i32, u32, 1 << 16; u32, u32, 1 << 16; i64, u64, 1 << 17; u64, u64, 1 << 17; }

pub(super) fn statistics(tensor: &Tensor, progress: &mut dyn FnMut(u64)) -> Result<Statistics> {
    match tensor.dtype() {
        DType::I32 => of_numbers(tensor, progress, i32::from_le_bytes),
        DType::U32 => of_numbers(tensor, progress, u32::from_le_bytes),
        DType::I64 => of_numbers(tensor, progress, i64::from_le_bytes),
        DType::U64 => of_numbers(tensor, progress, u64::from_le_bytes),
        DType::F32 => of_numbers(tensor, progress, f32::from_le_bytes),
        DType::F64 => of_numbers(tensor, progress, f64::from_le_bytes),
        DType::C64 => of_numbers(tensor, progress, |bytes| {
            let both = u64::from_le_bytes(bytes);
            let [re, im] = [both, both >> 32].map(|bits| f64::from(f32::from_bits(bits as u32)));
            // Squares of `f32` do not overflow.
            (re * re + im * im).sqrt()
        }),
        _ => of_numbers(tensor, progress, |bytes| {
            let both = u128::from_le_bytes(bytes);
            let [re, im] = [both, both >> 64].map(|bits| f64::from_bits(bits as u64));
            if re.is_nan() || im.is_nan() { f64::NAN } else { re.hypot(im) }
        }),
    }
}

/// What one thread counts.
struct Counts<T> {
    /// Only the counts of what is not finite, and of zeros.
    statistics: Statistics,
    /// `None` if all keys are kept.
    table: Option<Table>,
    keys: Vec<u64>,
    block: Vec<T>,
}

impl<T: Number> Counts<T> {
    fn new(numel: usize) -> Result<Self> {
        let table = if numel > BLOCK { Some(Table::new(T::COUNTERS)?) } else { None };
        Ok(Counts {
            statistics: Statistics::default(),
            table,
            keys: Vec::new(),
            block: Vec::with_capacity(BLOCK),
        })
    }

    fn add<const N: usize>(&mut self, bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Moments {
        let mut moments = Moments::default();
        for elements in bytes.as_chunks::<N>().0.chunks(BLOCK) {
            self.block.clear();
            self.block.extend(elements.iter().map(|&bytes| number(bytes)));
            moments.merge(&self.add_block());
        }
        moments
    }

    fn add_block(&mut self) -> Moments {
        let Counts { statistics, table, keys, block } = self;
        statistics.count += block.len() as u64;
        statistics.zero_count += count(block, |number| number == T::default());
        if count(block, T::is_finite) < block.len() as u64 {
            statistics.nan_count += count(block, T::is_nan);
            statistics.positive_infinity_count +=
                count(block, |number| number > T::default() && !number.is_finite());
            statistics.negative_infinity_count +=
                count(block, |number| number < T::default() && !number.is_finite());
            block.retain(|number| number.is_finite());
        }
        if block.is_empty() {
            return Moments::default();
        }
        match table {
            Some(table) => {
                let (low, high) = range(block);
                table.add((low.key(), high.key()), block.iter().map(|number| number.key()));
            }
            None => keys.extend(block.iter().map(|number| number.key())),
        }
        Moments::of_block(block)
    }
}

fn count<T: Number>(block: &[T], is_counted: impl Fn(T) -> bool) -> u64 {
    block.iter().map(|&number| u32::from(is_counted(number))).sum::<u32>().into()
}

fn of_numbers<T: Number, const N: usize>(
    tensor: &Tensor,
    progress: &mut dyn FnMut(u64),
    number: impl Fn([u8; N]) -> T + Copy + Sync,
) -> Result<Statistics> {
    let new = || Counts::<T>::new(tensor.numel());
    let (tallies, moments) = tally(tensor, new, |counts, bytes| counts.add(bytes, number), progress)?;
    let mut all = Counts::<T>::new(tensor.numel())?;
    let mut statistics = Statistics { moments, ..Statistics::default() };
    for counts in tallies {
        statistics.count += counts.statistics.count;
        statistics.nan_count += counts.statistics.nan_count;
        statistics.positive_infinity_count += counts.statistics.positive_infinity_count;
        statistics.negative_infinity_count += counts.statistics.negative_infinity_count;
        statistics.zero_count += counts.statistics.zero_count;
        all.keys.extend(counts.keys);
        if let (Some(table), Some(other)) = (&mut all.table, &counts.table) {
            table.merge(other);
        }
    }
    all.keys.sort_unstable();
    let few = all.keys.chunk_by(|a, b| a == b).map(|keys| (keys[0], keys[0], keys.len() as u64));
    let ranges = few.chain(all.table.iter().flat_map(Table::used));
    let value = |key| T::of_key(key).to_f64();
    statistics.bins = ranges.map(|(lo, hi, count)| Bin { lo: value(lo), hi: value(hi), count }).collect();
    let range = match (&all.table, &all.keys[..]) {
        (Some(table), _) => table.range(),
        (None, [lo, .., hi]) => Some((*lo, *hi)),
        (None, keys) => keys.first().map(|key| (*key, *key)),
    };
    statistics.min = range.map(|(lo, _)| T::of_key(lo).to_scalar());
    statistics.max = range.map(|(_, hi)| T::of_key(hi).to_scalar());
    Ok(statistics)
}
