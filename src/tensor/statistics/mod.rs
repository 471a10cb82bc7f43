//! Statistics of the elements of a view, in one pass.

mod sample;
mod summary;

use super::stream::order_axes_like;
use super::{Scalar, Tensor};
use crate::error::Result;
use summary::Moments;

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
    /// The number of elements that [`quantile`](Self::quantile) and [`histogram`](Self::histogram) use: all finite
    /// elements or, for tensors of more than 1,048,576 elements, the finite ones of a sample of that many. If few
    /// elements are finite, quantiles are less accurate. The sample is spread evenly over the tensor, contains the lowest
    /// and the highest finite element, and is the same in each call. All other statistics use all elements.
    pub sample_count: u64,
    moments: Moments,
    /// The finite elements of the sample, in any order. In the tensor, each is repeated this often.
    sample: Vec<f64>,
    repeats: u64,
}

impl Tensor {
    /// Counts and summarizes all elements, in one pass and on all processors. This works for every dtype and every
    /// view; bytes that are not valid bools count as true. `progress` is called on this thread with the bytes of
    /// elements read since the last call. Repeated elements of an expanded tensor are read once.
    ///
    /// The result does not depend on the number of threads. The result holds the sample, which takes up to 16 MiB. A
    /// buffer for each thread takes up to 8 MiB if the elements are not contiguous in memory.
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
        let mut statistics = summary::summarize(&tensor, &mut progress)?;
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

    /// Returns a quantile of the finite elements, as `numpy.quantile` does by default: 0 returns the minimum, 0.5 the
    /// median, and 1 the maximum. A position between two elements is interpolated linearly. Computed in `f64`. `None` if
    /// no element is finite, or the fraction is not between 0 and 1.
    ///
    /// The result is exact for tensors of up to 1,048,576 elements. Beyond, it is the quantile of a sample: the fraction
    /// of all elements below it almost always differs from `fraction` by less than 0.002. The minimum and the maximum
    /// are exact. Each call takes time in proportion to the sample, some milliseconds.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let statistics = Tensor::from_vec((0..=1000i16).collect(), &[1001])?.statistics(|_| ())?;
    /// assert_eq!((statistics.quantile(0.999), statistics.quantile(0.0005)), (Some(999.), Some(0.5)));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<f64> {
        if self.sample.is_empty() || !(0. ..=1.).contains(&fraction) {
            return None;
        }
        // The position among all elements of the sample, in ascending order.
        let position = self.sample_count.saturating_sub(1) as f64 * fraction;
        let (before, part) = (position.floor(), position.fract());
        let last = self.sample.len() - 1;
        let [low, high] =
            [before, before + 1.].map(|at| (at as u64 / self.repeats).min(last as u64) as usize);
        let mut sample = self.sample.clone();
        let (_, &mut a, above) = sample.select_nth_unstable_by(low, f64::total_cmp);
        let b = if high > low { above.iter().copied().fold(f64::INFINITY, f64::min) } else { a };
        let distance = b - a;
        Some(match part {
            // The elements are the ends of the range of `f64`.
            _ if !distance.is_finite() => a * (1. - part) + b * part,
            // Exact at both ends.
            _ if part < 0.5 => a + distance * part,
            _ => b - distance * (1. - part),
        })
    }

    /// Counts the finite elements in `bin_count` bins of equal width between the minimum and the maximum. An element at
    /// the edge of two bins is in the upper one. If all are equal, they are in the last bin.
    ///
    /// The counts are exact for tensors of up to 1,048,576 elements. Counts of a sample are multiplied so that they add
    /// up to all finite elements.
    #[must_use]
    pub fn histogram(&self, bin_count: usize) -> Vec<u64> {
        let mut counts = vec![0; bin_count];
        let Some(last) = bin_count.checked_sub(1).filter(|_| !self.sample.is_empty()) else { return counts };
        let min = self.sample.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.sample.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // The products below overflow for the largest numbers.
        let scale = if min.abs().max(max.abs()) > 1e200 { 2f64.powi(-100) } else { 1. };
        let (min, range, bin_count) = (min * scale, max * scale - min * scale, bin_count as f64);
        // It is multiplied before it is divided, so edges at integers are exact.
        let edge = |bin: usize| min + range * bin as f64 / bin_count;
        for number in self.sample.iter().map(|number| number * scale) {
            let part = if range == 0. { 1. } else { (number - min) / range };
            let mut bin = ((part * bin_count) as usize).min(last);
            // The division is rounded, and so are the edges.
            while bin > 0 && number < edge(bin) {
                bin -= 1;
            }
            while bin < last && number >= edge(bin + 1) {
                bin += 1;
            }
            counts[bin] += 1;
        }
        let (all, in_sample) = (u128::from(self.finite_count()), self.sample.len() as u128);
        let (mut below, mut counted) = (0, 0);
        for count in &mut counts {
            below += u128::from(*count);
            let total = (below * all / in_sample) as u64;
            *count = total - counted;
            counted = total;
        }
        counts
    }

    fn repeat(&mut self, repeats: u64) {
        let counts = [
            &mut self.count,
            &mut self.nan_count,
            &mut self.positive_infinity_count,
            &mut self.negative_infinity_count,
            &mut self.zero_count,
        ];
        for count in counts {
            *count = count.saturating_mul(repeats);
        }
        (self.sample_count, self.repeats) = ((self.sample.len() as u64).saturating_mul(repeats), repeats);
        self.moments.count *= repeats as f64;
        self.moments.squared_distances *= repeats as f64;
    }
}
