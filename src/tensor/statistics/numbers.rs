//! Statistics of dtypes of 32 bits and more: numbers are counted by range, and their moments are computed block by
//! block.

use stridemap_format::DType;

use super::table::{Bin, Table};
use super::{BLOCK_ELEMS, MAX_UNSAMPLED_ELEMS, Statistics, tally_pieces};
use crate::error::Result;
use crate::tensor::kernel::with_wide_vectors;
use crate::tensor::{Scalar, Tensor};

/// How many numbers are summed or compared side by side: enough for several vector instructions that do not wait for
/// each other.
const LANES: usize = 16;

/// The number of elements, their mean, and the sum of the squares of their distances from it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: f64,
    pub(super) squared_distances: f64,
}

impl Moments {
    /// Adds the moments of other elements, by the formula of Chan, Golub and LeVeque.
    pub(super) fn merge(&mut self, other: &Moments) {
        if self.count == 0. || other.count == 0. {
            // The formula would square the mean, which can overflow.
            *self = if self.count == 0. { *other } else { *self };
            return;
        }
        let count = self.count + other.count;
        let distance = other.mean - self.mean;
        self.mean += distance * (other.count / count);
        self.squared_distances +=
            other.squared_distances + distance * distance * (self.count * (other.count / count));
        self.count = count;
    }

    /// Returns the moments of bins that each hold one value.
    pub(super) fn of_bins(bins: &[Bin]) -> Self {
        let count = bins.iter().map(|bin| bin.count as f64).sum();
        let mean = bins.iter().map(|bin| bin.lo * bin.count as f64).sum::<f64>() / f64::max(count, 1.);
        let squared_distances = bins.iter().map(|bin| (bin.lo - mean).powi(2) * bin.count as f64).sum();
        Moments { count, mean, squared_distances }
    }
}

/// What the first pass over a block finds.
struct Summary<T> {
    sum: f64,
    low: T,
    high: T,
    zero_count: u64,
}

impl<T: Number> Summary<T> {
    /// Summarizes a block that is not empty. If it contains a NaN, the sum is NaN, and the lowest and the highest
    /// number are meaningless.
    fn of_block<E: Copy>(block: &[E], number: impl Fn(E) -> T + Copy) -> Self {
        let (chunks, rest) = block.as_chunks::<LANES>();
        let first = block.first().map_or(T::default(), |&element| number(element));
        let (sums, lows, highs, zeros) = with_wide_vectors(summarize_lanes, (chunks, first, number));
        let rest = rest.iter().map(|&element| number(element));
        let zeros_in_rest = rest.clone().filter(|number| *number == T::default()).count();
        Summary {
            sum: sums.iter().sum::<f64>() + rest.clone().map(T::to_f64).sum::<f64>(),
            low: rest.clone().chain(lows).fold(first, lower),
            high: rest.chain(highs).fold(first, higher),
            zero_count: zeros.iter().map(|&zeros| u64::from(zeros)).sum::<u64>() + zeros_in_rest as u64,
        }
    }
}

/// Returns the sum, the lowest number, the highest and the number of zeros of each lane.
#[inline(always)]
fn summarize_lanes<E: Copy, T: Number>(
    (chunks, first, number): (&[[E; LANES]], T, impl Fn(E) -> T),
) -> ([f64; LANES], [T; LANES], [T; LANES], [u32; LANES]) {
    let (mut sums, mut zeros) = ([0.; LANES], [0; LANES]);
    let (mut lows, mut highs) = ([first; LANES], [first; LANES]);
    for chunk in chunks {
        for (lane, &element) in chunk.iter().enumerate() {
            let number = number(element);
            sums[lane] += number.to_f64();
            lows[lane] = lower(lows[lane], number);
            highs[lane] = higher(highs[lane], number);
            zeros[lane] += u32::from(number == T::default());
        }
    }
    (sums, lows, highs, zeros)
}

fn lower<T: PartialOrd>(a: T, b: T) -> T {
    if b < a { b } else { a }
}

fn higher<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// Returns the sum of the squares of the distances from the mean.
fn squared_distances<E: Copy>(block: &[E], mean: f64, value: impl Fn(E) -> f64 + Copy) -> f64 {
    let square = |element| {
        let distance = value(element) - mean;
        distance * distance
    };
    let (chunks, rest) = block.as_chunks::<LANES>();
    let sums = with_wide_vectors(sum_lanes, (chunks, square));
    sums.iter().sum::<f64>() + rest.iter().map(|&element| square(element)).sum::<f64>()
}

#[inline(always)]
fn sum_lanes<E: Copy>((chunks, of): (&[[E; LANES]], impl Fn(E) -> f64)) -> [f64; LANES] {
    let mut sums = [0.; LANES];
    for chunk in chunks {
        for (sum, &element) in sums.iter_mut().zip(chunk) {
            *sum += of(element);
        }
    }
    sums
}

/// The type of a number that is not complex.
trait Number: Copy + Default + PartialOrd + Send {
    type Key: Into<u64>;

    fn to_f64(self) -> f64;
    fn is_finite(self) -> bool;
    /// Returns an integer that compares as the number does. Zeros of both signs have the same key.
    fn key(self) -> Self::Key;
    /// Returns the low 32 bits of `key >> shift`.
    fn slot(self, shift: u32) -> u32;
    /// Returns the number with this key.
    fn of_key(key: u64) -> Self;
    fn to_scalar(self) -> Scalar;
}

macro_rules! floats {
    ($($type:ty, $bits:ty, $signed:ty;)*) => {$(
        impl Number for $type {
            type Key = $bits;

            fn to_f64(self) -> f64 {
                self.into()
            }

            fn is_finite(self) -> bool {
                self.is_finite()
            }

            fn key(self) -> $bits {
                // Adding zero makes a negative zero positive.
                let bits = (self + 0.).to_bits();
                let sign = (bits as $signed >> (<$bits>::BITS - 1)) as $bits;
                bits ^ (sign | 1 << (<$bits>::BITS - 1))
            }

            fn slot(self, shift: u32) -> u32 {
                (self.key() >> shift) as u32
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
    ($($type:ty, $bits:ty;)*) => {$(
        impl Number for $type {
            type Key = $bits;

            fn to_f64(self) -> f64 {
                self as f64
            }

            fn is_finite(self) -> bool {
                true
            }

            fn key(self) -> $bits {
                // The lowest number has the key 0.
                self as $bits ^ <$type>::MIN as $bits
            }

            fn slot(self, shift: u32) -> u32 {
                (self.key() >> shift) as u32
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

floats! { f32, u32, i32; f64, u64, i64; }
integers! { i32, u32; u32, u32; i64, u64; u64, u64; }

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

/// Whether the block at this offset is in the sample: about one block in 16 is. Equally spaced offsets that are
/// multiplied by this odd number are spread evenly over all numbers of 64 bits.
fn is_in_sample(offset: usize) -> bool {
    (offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0
}

/// What one thread counts.
struct Counts {
    /// Only the fields that count elements are used.
    statistics: Statistics,
    /// `None` if all keys are kept.
    table: Option<Table>,
    keys: Vec<u64>,
    /// The number of zeros in the table.
    table_zero_count: u64,
    /// Whether the table counts only some of the blocks.
    is_sample: bool,
}

impl Counts {
    fn new(numel: usize) -> Result<Self> {
        let table = if numel > BLOCK_ELEMS { Some(Table::new()?) } else { None };
        Ok(Counts {
            statistics: Statistics::default(),
            table,
            keys: Vec::new(),
            table_zero_count: 0,
            is_sample: numel > MAX_UNSAMPLED_ELEMS,
        })
    }

    /// Adds elements that begin at `offset` of the storage.
    fn add<E: Copy, T: Number>(
        &mut self,
        elements: &[E],
        offset: usize,
        number: impl Fn(E) -> T + Copy,
    ) -> Moments {
        let mut moments = Moments::default();
        for (index, block) in elements.chunks(BLOCK_ELEMS).enumerate() {
            self.statistics.count += block.len() as u64;
            let is_in_table = !self.is_sample || is_in_sample(offset + index * BLOCK_ELEMS);
            moments.merge(&self.add_block(block, is_in_table, number));
        }
        moments
    }

    fn add_block<E: Copy, T: Number>(
        &mut self,
        block: &[E],
        is_in_table: bool,
        number: impl Fn(E) -> T + Copy,
    ) -> Moments {
        let summary = Summary::of_block(block, number);
        // The sum of finite floats can be infinite too.
        if summary.sum.is_finite() || block.iter().all(|&element| number(element).is_finite()) {
            return self.add_finite(block, summary, is_in_table, number);
        }
        let mut finite = Vec::with_capacity(block.len());
        for number in block.iter().map(|&element| number(element)) {
            if number.is_finite() {
                finite.push(number);
            } else if number > T::default() {
                self.statistics.positive_infinity_count += 1;
            } else if number < T::default() {
                self.statistics.negative_infinity_count += 1;
            } else {
                self.statistics.nan_count += 1;
            }
        }
        if finite.is_empty() {
            return Moments::default();
        }
        self.add_finite(&finite, Summary::of_block(&finite, |number| number), is_in_table, |number| number)
    }

    fn add_finite<E: Copy, T: Number>(
        &mut self,
        block: &[E],
        Summary { sum, low, high, zero_count }: Summary<T>,
        is_in_table: bool,
        number: impl Fn(E) -> T + Copy,
    ) -> Moments {
        self.statistics.zero_count += zero_count;
        match &mut self.table {
            Some(table) => {
                let range = (low.key().into(), high.key().into());
                table.cover(range.0, range.1);
                if is_in_table {
                    self.table_zero_count += zero_count;
                    table.add(range, block, |element, shift| number(element).slot(shift));
                }
            }
            None => self.keys.extend(block.iter().map(|&element| number(element).key().into())),
        }
        let count = block.len() as f64;
        let mean = sum / count;
        Moments {
            count,
            mean,
            squared_distances: squared_distances(block, mean, |element| number(element).to_f64()),
        }
    }
}

fn of_numbers<T: Number, const N: usize>(
    tensor: &Tensor,
    progress: &mut dyn FnMut(u64),
    number: impl Fn([u8; N]) -> T + Copy + Sync,
) -> Result<Statistics> {
    let new = || Counts::new(tensor.numel());
    let (tallies, moments) = tally_pieces(
        tensor,
        new,
        |counts, bytes, at| counts.add(bytes.as_chunks::<N>().0, at, number),
        progress,
    )?;
    let mut all = Counts::new(tensor.numel())?;
    let mut statistics = Statistics { moments, ..Statistics::default() };
    for counts in tallies {
        statistics.count += counts.statistics.count;
        statistics.nan_count += counts.statistics.nan_count;
        statistics.positive_infinity_count += counts.statistics.positive_infinity_count;
        statistics.negative_infinity_count += counts.statistics.negative_infinity_count;
        statistics.zero_count += counts.statistics.zero_count;
        all.keys.extend(counts.keys);
        all.table_zero_count += counts.table_zero_count;
        if let (Some(table), Some(other)) = (&mut all.table, &counts.table) {
            table.merge(other);
        }
    }
    all.keys.sort_unstable();
    let few = all.keys.chunk_by(|a, b| a == b).map(|keys| (keys[0], keys[0], keys.len() as u64));
    let value = |key| T::of_key(key).to_f64();
    let bin = |(lo, hi, count)| Bin { lo: value(lo), hi: value(hi), count };
    statistics.bins = few.map(bin).collect();
    let zero: u64 = T::default().key().into();
    for (lo, hi, count) in all.table.iter().flat_map(Table::used) {
        // Zeros are often most of the elements, so they have a bin of their own. The range of a counter begins at zero,
        // or does not contain it.
        if lo == zero && hi > zero {
            statistics.bins.push(bin((zero, zero, all.table_zero_count)));
            statistics.bins.push(bin((zero + 1, hi, count - all.table_zero_count)));
        } else {
            statistics.bins.push(bin((lo, hi, count)));
        }
    }
    let range = match (&all.table, &all.keys[..]) {
        (Some(table), _) => table.range(),
        (None, [lo, .., hi]) => Some((*lo, *hi)),
        (None, keys) => keys.first().map(|key| (*key, *key)),
    };
    statistics.min = range.map(|(lo, _)| T::of_key(lo).to_scalar());
    statistics.max = range.map(|(_, hi)| T::of_key(hi).to_scalar());
    Ok(statistics)
}
