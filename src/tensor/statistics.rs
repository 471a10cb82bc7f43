//! Statistics of the elements of a view, in one pass.

mod codes;
mod numbers;
mod table;

use std::slice;
use std::sync::{Mutex, PoisonError};

use super::stream::{MIN_PIECE_BYTES, PIECE_BYTES, for_each_piece, gather_into, order_axes_like};
use super::{Scalar, Tensor};
use crate::error::Result;
use crate::parallel;
use numbers::Moments;
use table::Bin;

/// Tensors of at most this many elements have a bin for each value, not ranges. It is also how many numbers are
/// summarized at a time: they stay in a cache.
const BLOCK_ELEMS: usize = 4096;

/// If a tensor has more elements, only a sample of them is counted in bins, because counting in bins takes longer than
/// all other work.
const MAX_UNSAMPLED_ELEMS: usize = 64 << 20;

/// Statistics of the elements of a tensor, returned by [`Tensor::statistics`].
///
/// NaN and infinities are counted, and are left out of the other numbers. If no element is finite, there is no minimum,
/// maximum or mean.
///
/// Each element is one number, with two exceptions. An element of a complex dtype counts with its magnitude, which is
/// NaN if either part is. An element of `float4_e2m1fn_x2` counts as two numbers.
#[must_use = "this only reports"]
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Statistics {
    /// The number of elements. An element to which several indices refer counts for each of them.
    pub count: u64,
    /// The number of elements that are NaN.
    pub nan_count: u64,
    /// The number of positive infinities.
    pub positive_infinity_count: u64,
    /// The number of negative infinities.
    pub negative_infinity_count: u64,
    /// The number of zeros, of either sign.
    pub zero_count: u64,
    /// The lowest finite element. Exact, also for integers of 64 bits.
    pub min: Option<Scalar>,
    /// The highest finite element. Exact, also for integers of 64 bits.
    pub max: Option<Scalar>,
    moments: Moments,
    /// The finite elements in ascending ranges, or a sample of them.
    bins: Vec<Bin>,
}

impl Tensor {
    /// Counts and summarizes all elements, in one pass and on all processors. This works for every dtype and every
    /// view; bytes that are not valid bools count as true. `progress` is called on this thread with the bytes of
    /// elements read since the last call. Repeated elements of an expanded tensor are read once.
    ///
    /// The result does not depend on the number of threads. Each thread takes at most 2 MiB for counters and, if the
    /// elements are not contiguous in memory, 8 MiB of buffers.
    ///
    /// ```
    /// # use stridemap::{Scalar, Tensor};
    /// let x = Tensor::from_vec(vec![1f32, 2., 0., f32::NAN, 3.], &[5])?;
    /// let statistics = x.statistics(|_| ())?;
    /// assert_eq!((statistics.count, statistics.nan_count, statistics.zero_count), (5, 1, 1));
    /// assert_eq!((statistics.max, statistics.mean()), (Some(Scalar::Float(3.)), Some(1.5)));
    /// assert_eq!(statistics.histogram(3), [1, 1, 2]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is not enough memory;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn statistics(&self, mut progress: impl FnMut(u64)) -> Result<Statistics> {
        let steady = self.steady()?;
        let (tensor, repeats) = steady.without_repeats()?;
        let tensor = order_axes_like(&tensor)(&tensor)?;
        let mut statistics = if self.dtype().itemsize() <= 2 {
            codes::statistics(&tensor, &mut progress)?
        } else {
            numbers::statistics(&tensor, &mut progress)?
        };
        statistics.repeat(repeats);
        Ok(statistics)
    }

    /// Returns a view that has each element once, and how often each is repeated.
    fn without_repeats(&self) -> Result<(Tensor, u64)> {
        let (mut view, mut repeats) = (self.clone(), 1u64);
        for axis in (0..self.ndim()).rev() {
            let n = self.size()[axis];
            if self.stride()[axis] == 0 && n > 0 {
                view = view.select(axis, 0)?;
                repeats = repeats.saturating_mul(n as u64);
            }
        }
        Ok((view, repeats))
    }
}

impl Statistics {
    /// Returns how many finite elements there are.
    #[must_use]
    pub fn finite_count(&self) -> u64 {
        self.count - self.nan_count - self.positive_infinity_count - self.negative_infinity_count
    }

    /// Returns the mean of the finite elements, computed in `f64`. `None` if no element is finite. The mean is infinite
    /// or NaN if the sum of some block of 4,096 elements exceeds the range of `f64`.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.moments.count > 0.).then_some(self.moments.mean)
    }

    /// Returns the standard deviation of the finite elements, computed in `f64`. `None` if there are fewer than two
    /// finite elements.
    ///
    /// It is the deviation of a sample, like that of `torch.std`: the sum of squares is divided by the number of
    /// elements less one. NumPy divides by the number of elements.
    #[must_use]
    pub fn std(&self) -> Option<f64> {
        let Moments { count, squared_distances, .. } = self.moments;
        (count > 1.).then(|| (squared_distances / (count - 1.)).sqrt())
    }

    /// Returns a quantile of the finite elements: the element below which a fraction of them lies. 0 returns the
    /// minimum, 0.5 the median, and 1 the maximum. Between two elements, the result is the nearer one, and the lower
    /// one if both are equally near, as in `torch.median`. `None` if no element is finite, or the fraction is not
    /// between 0 and 1.
    ///
    /// The result is exact for dtypes of up to 16 bits, and for tensors of up to 4,096 elements. Otherwise the error is
    /// at most 1/65,536 of the range from the minimum to the maximum for integers, 0.4 % of the element for `float32`,
    /// and 3.2 % for `float64`. A quantile that is zero is exact. Above 64 Mi elements of these dtypes, the result is the quantile of a sample of
    /// [`sample_count`](Self::sample_count) elements, except the minimum and the maximum, which are always exact.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let statistics = Tensor::from_vec((0..=1000i16).collect(), &[1001])?.statistics(|_| ())?;
    /// assert_eq!(statistics.quantile(0.999), Some(999.));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<f64> {
        if !(0. ..=1.).contains(&fraction) {
            return None;
        }
        if fraction == 0. {
            return self.bins.first().map(|bin| bin.lo);
        } else if fraction == 1. {
            return self.bins.last().map(|bin| bin.hi);
        }
        // The position of the element among those counted, in ascending order.
        let position = (self.sample_count().saturating_sub(1) as f64 * fraction - 0.5).ceil().max(0.);
        let mut below = 0.;
        for bin in &self.bins {
            let count = bin.count as f64;
            if position < below + count {
                // Interpolates: the first element of a bin is taken to be `lo`, and the last `hi`.
                let part = if count > 1. { (position - below) / (count - 1.) } else { 0.5 };
                return Some(if position == 0. { bin.lo } else { bin.lo + (bin.hi - bin.lo) * part });
            }
            below += count;
        }
        self.bins.last().map(|bin| bin.hi)
    }

    /// Counts the finite elements in `bin_count` bins of equal width between the minimum and the maximum. An element at
    /// the edge of two bins is in the upper one. If all are equal, they are in the last bin.
    ///
    /// The counts are exact where the elements are known exactly, as described at [`quantile`](Self::quantile).
    /// Otherwise, the elements of a range that contains the edge of two bins are divided between the two in proportion.
    /// Counts of a sample are multiplied so that they add up to all finite elements.
    #[must_use]
    pub fn histogram(&self, bin_count: usize) -> Vec<u64> {
        let (Some(first), Some(last)) = (self.bins.first(), self.bins.last()) else {
            return vec![0; bin_count];
        };
        let mut counts = Vec::with_capacity(bin_count);
        let mut bins = self.bins.iter().peekable();
        let (mut below, mut counted) = (0, 0);
        let (all, in_bins) = (u128::from(self.finite_count()), u128::from(self.sample_count()));
        for edge in 1..=bin_count {
            let is_last = edge == bin_count;
            // Halves are subtracted, because the difference could overflow otherwise. It is multiplied before it is
            // divided, so edges at integers are exact.
            let half = (last.hi / 2. - first.lo / 2.) * edge as f64 / bin_count as f64;
            let edge = ((first.lo / 2. + half) * 2.).min(last.hi);
            while let Some(bin) = bins.next_if(|bin| bin.hi < edge) {
                below += bin.count;
            }
            let partly = bins.peek().filter(|bin| bin.lo < edge);
            let partly = partly.map_or(0, |bin| {
                let part = (edge - bin.lo) / (bin.hi - bin.lo) * bin.count as f64;
                (part.round() as u64).min(bin.count)
            });
            let of_all = u128::from(below + partly) * all / in_bins.max(1);
            let total = if is_last { self.finite_count() } else { (of_all as u64).max(counted) };
            counts.push(total - counted);
            counted = total;
        }
        counts
    }

    /// Returns the number of elements that [`quantile`](Self::quantile) and [`histogram`](Self::histogram) use. These
    /// are all finite elements or, for tensors of more than 64 Mi elements of 32 bits or more, a sample of about one in
    /// 16. The sample consists of blocks of 4,096 elements, spread evenly over the tensor, and is the same in each
    /// call. All other statistics use all elements.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        self.bins.iter().map(|bin| bin.count).sum()
    }

    fn repeat(&mut self, repeats: u64) {
        let counts = [
            &mut self.count,
            &mut self.nan_count,
            &mut self.positive_infinity_count,
            &mut self.negative_infinity_count,
            &mut self.zero_count,
        ];
        for count in counts.into_iter().chain(self.bins.iter_mut().map(|bin| &mut bin.count)) {
            *count = count.saturating_mul(repeats);
        }
        self.moments.count *= repeats as f64;
        self.moments.squared_distances *= repeats as f64;
    }
}

/// Passes the bytes of all elements to `add`, in pieces and on several threads, each with its offset in the storage.
/// Returns one tally per thread, and the moments of all pieces. The moments are added in the order of the pieces, so
/// they do not depend on the number of threads.
fn tally_pieces<T: Send>(
    tensor: &Tensor,
    new: impl Fn() -> Result<T> + Sync,
    add: impl Fn(&mut T, &[u8], usize) -> Moments + Sync,
    progress: &mut dyn FnMut(u64),
) -> Result<(Vec<T>, Moments)> {
    let piece_bytes = if tensor.is_contiguous() { PIECE_BYTES } else { MIN_PIECE_BYTES };
    let thread_count = parallel::thread_count(tensor.nbytes().div_ceil(piece_bytes).max(1));
    let idle = Mutex::<Vec<(T, Vec<u8>)>>::default();
    let lock = || idle.lock().unwrap_or_else(PoisonError::into_inner);
    let mut moments = Moments::default();
    parallel::in_order(
        thread_count,
        |push| {
            // Rows of any length are cut into equal pieces.
            let whole = if tensor.is_contiguous() { tensor.flatten(0, -1)? } else { tensor.clone() };
            for_each_piece(slice::from_ref(&whole), piece_bytes / tensor.dtype().itemsize(), &mut |pieces| {
                pieces.iter().cloned().try_for_each(&mut *push)
            })
        },
        |piece| {
            let taken = lock().pop();
            let (mut tally, mut buffer) = taken.map_or_else(|| Ok((new()?, Vec::new())), Ok)?;
            let moments = match piece.borrow_bytes() {
                Some(bytes) => add(&mut tally, bytes, piece.storage_offset()),
                None => {
                    gather_into(&piece, &mut buffer)?;
                    add(&mut tally, &buffer, piece.storage_offset())
                }
            };
            lock().push((tally, buffer));
            Ok((piece.nbytes() as u64, moments))
        },
        |done: Result<(u64, Moments)>| {
            let (size_bytes, piece) = done?;
            moments.merge(&piece);
            progress(size_bytes);
            Ok(())
        },
    )?;
    let tallies = idle.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((tallies.into_iter().map(|(tally, _)| tally).collect(), moments))
}
