//! The pass over all elements: counts, extremes, moments, and the elements of the sample.

use std::slice;
use std::sync::{Mutex, PoisonError};

use num_complex::Complex;
use stridemap_format::DType;

use super::Statistics;
use super::sample::Sample;
use crate::error::Result;
use crate::parallel;
use crate::tensor::cast::widen;
use crate::tensor::kernel::with_wide_vectors;
use crate::tensor::small_float::E2M1;
use crate::tensor::stream::{MIN_PIECE_BYTES, PIECE_BYTES, for_each_piece, gather_into};
use crate::tensor::{Element, Scalar, Tensor};

/// How many numbers are summarized at a time: they stay in a cache.
const BLOCK_ELEMS: usize = 4096;

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
    fn merge(&mut self, other: &Moments) {
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
}

/// The types in which elements are summarized. Every element is widened to one of them without loss.
trait Number: Element + PartialOrd + Into<Scalar> {
    fn to_f64(self) -> f64;

    fn is_finite(self) -> bool {
        self.to_f64().is_finite()
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    )*};
}

numbers! { i64, u64, f32, f64 }

/// Summarizes all elements of a tensor that repeats none. Fills in everything but the number of the sample.
pub(super) fn summarize(tensor: &Tensor, progress: &mut dyn FnMut(u64)) -> Result<Statistics> {
    match tensor.dtype() {
        DType::Bool => {
            let found = summarize_as::<i64>(tensor, 1, progress, widen)?;
            let bool_of = |scalar| if let Scalar::Int(n) = scalar { Scalar::Bool(n != 0) } else { scalar };
            Ok(Statistics { min: found.min.map(bool_of), max: found.max.map(bool_of), ..found })
        }
        DType::U64 => summarize_as::<u64>(tensor, 1, progress, widen),
        DType::F64 => summarize_as::<f64>(tensor, 1, progress, widen),
        DType::F4E2M1FNx2 => summarize_as::<f32>(tensor, 2, progress, |_, bytes, out| {
            out.extend(
                bytes.iter().flat_map(|&byte| [byte & 0xf, byte >> 4]).map(|code| E2M1.decode(code.into())),
            );
            Ok(())
        }),
        dtype if dtype.is_complex() => summarize_as::<f64>(tensor, 1, progress, |dtype, bytes, out| {
            let mut wide = Vec::<Complex<f64>>::new();
            widen(dtype, bytes, &mut wide)?;
            let magnitude = |z: Complex<f64>| if z.is_nan() { f64::NAN } else { z.norm() };
            out.extend(wide.into_iter().map(magnitude));
            Ok(())
        }),
        dtype if dtype.is_floating_point() => summarize_as::<f32>(tensor, 1, progress, widen),
        _ => summarize_as::<i64>(tensor, 1, progress, widen),
    }
}

/// Summarizes elements by `decode`, which widens a block of them. Each element is `per_element` numbers.
fn summarize_as<T: Number>(
    tensor: &Tensor,
    per_element: u64,
    progress: &mut dyn FnMut(u64),
    decode: impl Fn(DType, &[u8], &mut Vec<T>) -> Result<()> + Sync,
) -> Result<Statistics> {
    let itemsize = tensor.dtype().itemsize();
    let sample = Sample::of((tensor.numel() as u64).saturating_mul(per_element));
    let piece_bytes = if tensor.is_contiguous() { PIECE_BYTES } else { MIN_PIECE_BYTES };
    let thread_count = parallel::thread_count(tensor.nbytes().div_ceil(piece_bytes).max(1));
    // Rows of any length are cut into equal pieces.
    let whole = if tensor.is_contiguous() { tensor.flatten(0, -1)? } else { tensor.clone() };
    let idle = Mutex::<Vec<(Vec<u8>, Vec<T>)>>::default();
    let lock = || idle.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Summary::default();
    parallel::in_order(
        thread_count,
        |push| {
            let mut first = 0;
            for_each_piece(slice::from_ref(&whole), piece_bytes / itemsize, &mut |pieces| {
                pieces.iter().try_for_each(|piece| {
                    push((piece.clone(), first))?;
                    first += piece.numel() as u64 * per_element;
                    Ok(())
                })
            })
        },
        |(piece, mut first)| {
            let (mut gathered, mut decoded) = lock().pop().unwrap_or_default();
            let bytes = match piece.borrow_bytes()? {
                Some(bytes) => bytes,
                None => {
                    gather_into(&piece, &mut gathered)?;
                    &gathered
                }
            };
            let mut summary = Summary::default();
            for bytes in bytes.chunks(BLOCK_ELEMS * itemsize) {
                let borrowed = if T::DTYPE == piece.dtype() { T::borrow(bytes) } else { None };
                if borrowed.is_none() {
                    decoded.clear();
                    decode(piece.dtype(), bytes, &mut decoded)?;
                }
                let block = borrowed.unwrap_or(&decoded);
                summary.add(block);
                let end = first + block.len() as u64;
                let mut keep = |number: T| {
                    if number.is_finite() {
                        summary.found.sample.push(positive_zero(number));
                    }
                };
                match sample.has_all() {
                    true => block.iter().copied().for_each(keep),
                    false => sample.places(first..end).for_each(|at| keep(block[(at - first) as usize])),
                }
                first = end;
            }
            lock().push((gathered, decoded));
            Ok((piece.nbytes() as u64, summary))
        },
        |done: Result<(u64, Summary<T>)>| {
            let (size_bytes, summary) = done?;
            // In the order of the pieces, so that the result does not depend on the number of threads.
            all.merge(summary);
            progress(size_bytes);
            Ok(())
        },
    )?;
    let Summary { mut found, range } = all;
    if let Some((low, high)) = range {
        let scalar = |number: T| match number.into() {
            Scalar::Float(_) => Scalar::Float(positive_zero(number)),
            scalar => scalar,
        };
        (found.min, found.max) = (Some(scalar(low)), Some(scalar(high)));
        if !sample.has_all() {
            found.sample.extend([low, high].map(positive_zero));
        }
    }
    Ok(found)
}

/// Returns a number as an `f64`. Adding zero makes a negative zero positive.
fn positive_zero<T: Number>(number: T) -> f64 {
    number.to_f64() + 0.
}

/// What is known of some of the elements.
#[derive(Default)]
struct Summary<T> {
    /// Without `min` and `max`.
    found: Statistics,
    range: Option<(T, T)>,
}

impl<T: Number> Summary<T> {
    /// Adds a block, except to the sample.
    fn add(&mut self, block: &[T]) {
        self.found.count += block.len() as u64;
        let summed = Block::of(block);
        // The sum of finite floats can be infinite too.
        if summed.sum.is_finite() || block.iter().all(|number| number.is_finite()) {
            return self.add_finite(block, summed);
        }
        let mut finite = Vec::with_capacity(block.len());
        for &number in block {
            if number.is_finite() {
                finite.push(number);
            } else if number > T::default() {
                self.found.positive_infinity_count += 1;
            } else if number < T::default() {
                self.found.negative_infinity_count += 1;
            } else {
                self.found.nan_count += 1;
            }
        }
        self.add_finite(&finite, Block::of(&finite));
    }

    fn add_finite(&mut self, block: &[T], Block { sum, low, high, zero_count }: Block<T>) {
        if block.is_empty() {
            return;
        }
        self.found.zero_count += zero_count;
        self.add_range(Some((low, high)));
        let count = block.len() as f64;
        let mean = sum / count;
        let squared_distances = squared_distances(block, mean);
        self.found.moments.merge(&Moments { count, mean, squared_distances });
    }

    fn add_range(&mut self, other: Option<(T, T)>) {
        self.range = match (self.range, other) {
            (Some((low, high)), Some((a, b))) => Some((lower(low, a), higher(high, b))),
            (own, other) => own.or(other),
        };
    }

    fn merge(&mut self, other: Self) {
        self.add_range(other.range);
        let (own, other) = (&mut self.found, other.found);
        own.count += other.count;
        own.nan_count += other.nan_count;
        own.positive_infinity_count += other.positive_infinity_count;
        own.negative_infinity_count += other.negative_infinity_count;
        own.zero_count += other.zero_count;
        own.moments.merge(&other.moments);
        own.sample.extend(other.sample);
    }
}

/// What the first pass over a block finds.
struct Block<T> {
    sum: f64,
    low: T,
    high: T,
    zero_count: u64,
}

impl<T: Number> Block<T> {
    /// If the block contains a NaN, the sum is NaN, and the lowest and the highest number are meaningless.
    fn of(block: &[T]) -> Self {
        let (chunks, rest) = block.as_chunks::<LANES>();
        let first = block.first().copied().unwrap_or_default();
        let (sums, lows, highs, zeros) = with_wide_vectors(summarize_lanes, (chunks, first));
        let rest = rest.iter().copied();
        let zeros_in_rest = rest.clone().filter(|number| *number == T::default()).count();
        Block {
            sum: sums.iter().sum::<f64>() + rest.clone().map(T::to_f64).sum::<f64>(),
            low: rest.clone().chain(lows).fold(first, lower),
            high: rest.chain(highs).fold(first, higher),
            zero_count: zeros.iter().map(|&zeros| u64::from(zeros)).sum::<u64>() + zeros_in_rest as u64,
        }
    }
}

/// Returns the sum, the lowest number, the highest and the number of zeros of each lane.
#[inline(always)]
fn summarize_lanes<T: Number>(
    (chunks, first): (&[[T; LANES]], T),
) -> ([f64; LANES], [T; LANES], [T; LANES], [u32; LANES]) {
    let (mut sums, mut zeros) = ([0.; LANES], [0; LANES]);
    let (mut lows, mut highs) = ([first; LANES], [first; LANES]);
    for chunk in chunks {
        for (lane, &number) in chunk.iter().enumerate() {
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
fn squared_distances<T: Number>(block: &[T], mean: f64) -> f64 {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let sums = with_wide_vectors(sum_squares, (chunks, mean));
    sums.iter().sum::<f64>() + rest.iter().map(|number| (number.to_f64() - mean).powi(2)).sum::<f64>()
}

#[inline(always)]
fn sum_squares<T: Number>((chunks, mean): (&[[T; LANES]], f64)) -> [f64; LANES] {
    let mut sums = [0.; LANES];
    for chunk in chunks {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            let distance = number.to_f64() - mean;
            *sum += distance * distance;
        }
    }
    sums
}
