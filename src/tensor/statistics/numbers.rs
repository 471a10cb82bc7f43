//! Statistics of dtypes of 32 bits and more: numbers are counted by range, and their moments are computed block by block.

use stridemap_format::DType;

use super::table::{Bin, Table};
use super::{BLOCK, Statistics, tally};
use crate::error::Result;
use crate::tensor::{Scalar, Tensor};

/// How many numbers are summed or compared side by side: enough for several vector instructions that do not wait for each
/// other.
const LANES: usize = 16;

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

    fn of_block<E: Copy, T: Number>(block: &[E], number: impl Fn(E) -> T + Copy) -> Self {
        let count = block.len() as f64;
        let mean = sum(block, |element| number(element).to_f64()) / count;
        let squares = sum(block, |element| {
            let distance = number(element).to_f64() - mean;
            distance * distance
        });
        Moments { count, mean, squares }
    }
}

/// Returns the sum of a function of each element.
fn sum<E: Copy>(block: &[E], of: impl Fn(E) -> f64) -> f64 {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let mut sums = [0.; LANES];
    for chunk in chunks {
        for (sum, &element) in sums.iter_mut().zip(chunk) {
            *sum += of(element);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&element| of(element)).sum::<f64>()
}

/// What a block has besides its moments.
struct Summary<T> {
    low: T,
    high: T,
    zero_count: u64,
}

impl<T: Number> Summary<T> {
    /// Summarizes a block that is not empty and has no NaN.
    fn of_block<E: Copy>(block: &[E], number: impl Fn(E) -> T + Copy) -> Self {
        let (chunks, rest) = block.as_chunks::<LANES>();
        let first = block.first().map_or(T::default(), |&element| number(element));
        let (mut lows, mut highs, mut zeros) = ([first; LANES], [first; LANES], [0u32; LANES]);
        for chunk in chunks {
            for (((low, high), zeros), &element) in lows.iter_mut().zip(&mut highs).zip(&mut zeros).zip(chunk)
            {
                let number = number(element);
                *low = if number < *low { number } else { *low };
                *high = if number > *high { number } else { *high };
                *zeros += u32::from(number == T::default());
            }
        }
        let (mut low, mut high, mut zero_count) = (first, first, zeros.iter().sum::<u32>());
        for number in lows.into_iter().chain(highs) {
            low = if number < low { number } else { low };
            high = if number > high { number } else { high };
        }
        for number in rest.iter().map(|&element| number(element)) {
            low = if number < low { number } else { low };
            high = if number > high { number } else { high };
            zero_count += u32::from(number == T::default());
        }
        Summary { low, high, zero_count: zero_count.into() }
    }
}

/// The type of a number that is not complex.
trait Number: Copy + Default + PartialOrd + Send {
    type Key: Into<u64>;

    fn to_f64(self) -> f64;
    fn is_finite(self) -> bool;
    /// Returns an integer in the order of the numbers. Zeros of both signs have the same key.
    fn key(self) -> Self::Key;
    /// Returns the low bits of the key shifted to the right.
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

/// What one thread counts.
struct Counts {
    /// Only the counts of elements.
    statistics: Statistics,
    /// `None` if all keys are kept.
    table: Option<Table>,
    keys: Vec<u64>,
}

impl Counts {
    fn new(numel: usize) -> Result<Self> {
        let table = if numel > BLOCK { Some(Table::new()?) } else { None };
        Ok(Counts { statistics: Statistics::default(), table, keys: Vec::new() })
    }

    fn add<E: Copy, T: Number>(&mut self, elements: &[E], number: impl Fn(E) -> T + Copy) -> Moments {
        let mut moments = Moments::default();
        for block in elements.chunks(BLOCK) {
            self.statistics.count += block.len() as u64;
            moments.merge(&self.add_block(block, number));
        }
        moments
    }

    fn add_block<E: Copy, T: Number>(&mut self, block: &[E], number: impl Fn(E) -> T + Copy) -> Moments {
        let moments = Moments::of_block(block, number);
        // The sum of finite floats can be infinite too.
        if moments.mean.is_finite() || block.iter().all(|&element| number(element).is_finite()) {
            self.add_finite(block, number);
            return moments;
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
        self.add_finite(&finite, |number| number);
        Moments::of_block(&finite, |number| number)
    }

    /// Counts the numbers of a block that is not empty.
    fn add_finite<E: Copy, T: Number>(&mut self, block: &[E], number: impl Fn(E) -> T + Copy) {
        let Summary { low, high, zero_count } = Summary::of_block(block, number);
        self.statistics.zero_count += zero_count;
        match &mut self.table {
            Some(table) => {
                let range = (low.key().into(), high.key().into());
                table.add(range, block, |element, shift| number(element).slot(shift));
            }
            None => self.keys.extend(block.iter().map(|&element| number(element).key().into())),
        }
    }
}

fn of_numbers<T: Number, const N: usize>(
    tensor: &Tensor,
    progress: &mut dyn FnMut(u64),
    number: impl Fn([u8; N]) -> T + Copy + Sync,
) -> Result<Statistics> {
    let new = || Counts::new(tensor.numel());
    let (tallies, moments) =
        tally(tensor, new, |counts, bytes| counts.add(bytes.as_chunks::<N>().0, number), progress)?;
    let mut all = Counts::new(tensor.numel())?;
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
