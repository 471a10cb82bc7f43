//! Compares the elements of two tensors of the same size, in pieces.
//!
//! Elements that both tensors broadcast are compared once. The axes are visited in the order of the first tensor's
//! storage, so that a transposed tensor is read in the order in which it was written.

use std::cmp::Reverse;

use serde::Serialize;
use stridemap::{DType, Scalar, Tensor, parallel};

use super::elements::{Gap, Tolerance, larger, widened};
use super::norms::Norms;
use crate::error::Error;
use crate::pieces::{Cut, Piece, Pieces, steady};

/// The maximum number of bytes that a thread holds of each tensor.
const PIECE_BYTES: usize = 4 << 20;

/// How many elements that differ are decoded at a time.
const DECODED_ELEMS: usize = 1 << 12;

/// The maximum number of threads. More would not read faster, and would use more memory.
const MAX_THREADS: usize = 4;

/// How the elements of two tensors differ.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Difference {
    /// The number of elements that differ.
    pub(super) count: u64,
    /// The number of differing pairs in which an element is NaN.
    pub(super) nan_count: u64,
    /// The largest absolute and the largest relative distance, not necessarily of the same element. `None` if no pair
    /// has a distance.
    pub(super) largest: Option<(Scalar, f64)>,
    /// The first difference in row-major order: its position, and the values in A and B.
    pub(super) first: (usize, Scalar, Scalar),
    /// Of all elements, if they were asked for.
    pub(super) norms: Option<Norms>,
}

/// One of the two tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Side {
    A,
    B,
}

/// The reason that the elements could not be compared.
#[derive(Debug)]
pub(super) struct Failure {
    /// The tensor that could not be read. `None` if the failure concerns both.
    pub(super) side: Option<Side>,
    pub(super) why: String,
}

impl Failure {
    pub(super) fn of(side: Side) -> impl Fn(stridemap::Error) -> Failure {
        move |e| Failure { side: Some(side), why: Error::from(e).to_string() }
    }
}

/// Returns how two tensors differ, or `None` if all elements are equal. `needs_norms` asks for norms. Calls `progress`
/// with the number of elements compared since the last call.
pub(super) fn compare(
    a: &Tensor,
    b: &Tensor,
    (tolerance, needs_norms): (Tolerance, bool),
    progress: &dyn Fn(usize),
) -> Result<Option<Difference>, Failure> {
    let (a, _guard_a) = steady(a).map_err(Failure::of(Side::A))?;
    let (b, _guard_b) = steady(b).map_err(Failure::of(Side::B))?;
    let (order, repeats, views) = prepare(&a, &b)?;
    let Some(numel) = views.first().map(Tensor::numel).filter(|&numel| numel > 0) else { return Ok(None) };
    // The tensor is not empty, so the product fits.
    let mut steps = Vec::with_capacity(a.ndim());
    let mut step = 1usize;
    for n in a.size().iter().rev() {
        steps.push(step);
        step *= n;
    }
    steps.reverse();
    let limit_elems = PIECE_BYTES / a.dtype().itemsize().max(b.dtype().itemsize());
    let cut = if has_descending_strides(&views) { Cut::Outermost } else { Cut::Longest };
    let comparison = Comparison {
        is_row_major: order.is_sorted(),
        steps: order.iter().filter_map(|&axis| steps.get(axis).copied()).collect(),
        tolerance,
    };
    let threads = if numel <= limit_elems { 1 } else { parallel::thread_count(MAX_THREADS) };
    let (mut found, mut norms): (Option<Difference>, Norms) = Default::default();
    parallel::in_order(
        threads,
        |push| {
            let failed = |e: stridemap::Error| Failure { side: None, why: Error::from(e).to_string() };
            Pieces::of(views, limit_elems, cut).try_for_each(|piece| push(piece.map_err(failed)?))
        },
        |piece| {
            let piece_norms = if needs_norms { comparison.norms(&piece)? } else { Norms::default() };
            Ok((comparison.compare(&piece)?, piece_norms, piece.views.first().map_or(0, Tensor::numel)))
        },
        |compared: Result<_, Failure>| {
            let (difference, piece_norms, numel) = compared?;
            norms.merge(piece_norms);
            match (&mut found, difference) {
                (Some(all), Some(difference)) => all.add(difference),
                (all @ None, difference) => *all = difference,
                _ => {}
            }
            progress(numel.saturating_mul(repeats));
            Ok(())
        },
    )?;
    Ok(found.map(|difference| Difference {
        count: difference.count.saturating_mul(repeats as u64),
        nan_count: difference.nan_count.saturating_mul(repeats as u64),
        // Repeating all elements changes none of the quotients.
        norms: needs_norms.then_some(norms),
        ..difference
    }))
}

/// Returns the order in which to visit the axes, the number of times that the tensors repeat each element, and views
/// of the tensors without these repetitions and with the axes in that order.
fn prepare(a: &Tensor, b: &Tensor) -> Result<(Vec<usize>, usize, Vec<Tensor>), Failure> {
    let (in_a, in_b) = (Failure::of(Side::A), Failure::of(Side::B));
    let (mut a, mut b) = (a.clone(), b.clone());
    let mut repeats = 1usize;
    for axis in 0..a.ndim() {
        let n = a.size().get(axis).copied().unwrap_or(0);
        if n > 1 && a.stride().get(axis) == Some(&0) && b.stride().get(axis) == Some(&0) {
            a = a.narrow(axis as isize, 0, 1).map_err(&in_a)?;
            b = b.narrow(axis as isize, 0, 1).map_err(&in_b)?;
            repeats = repeats.saturating_mul(n);
        }
    }
    // The stride of an axis of size 1 has no meaning.
    let mut order: Vec<(usize, usize)> =
        a.stride().iter().map(|stride| stride.unsigned_abs()).enumerate().collect();
    let is_long = |axis: usize| a.size().get(axis).is_some_and(|&n| n > 1);
    order.sort_by_key(|&(axis, stride)| (!is_long(axis), Reverse(if is_long(axis) { stride } else { 0 })));
    let order: Vec<usize> = order.into_iter().map(|(axis, _)| axis).collect();
    let axes = order.iter().copied();
    let views = vec![a.permute(axes.clone()).map_err(in_a)?, b.permute(axes).map_err(in_b)?];
    Ok((order, repeats, views))
}

/// Returns whether strides descend in each view, so that a piece cut along the first axis is nearly contiguous.
fn has_descending_strides(views: &[Tensor]) -> bool {
    views.iter().all(|view| {
        let long = view.size().iter().zip(view.stride()).filter(|&(&n, _)| n > 1);
        long.map(|(_, stride)| stride.unsigned_abs()).is_sorted_by(|a, b| a >= b)
    })
}

struct Comparison {
    is_row_major: bool,
    /// For each axis of the pieces: how far apart two neighbors along this axis are in the row-major order of the
    /// tensor.
    steps: Vec<usize>,
    tolerance: Tolerance,
}

impl Comparison {
    /// Returns the norms of a piece, whether its elements differ or not.
    fn norms(&self, piece: &Piece) -> Result<Norms, Failure> {
        let mut norms = Norms::default();
        let [a, b] = piece.views.as_slice() else { return Ok(norms) };
        let a_bytes = a.to_bytes().map_err(Failure::of(Side::A))?;
        let b_bytes = b.to_bytes().map_err(Failure::of(Side::B))?;
        let some = |tensor: &Tensor| DECODED_ELEMS * tensor.dtype().itemsize();
        for (a_some, b_some) in a_bytes.chunks(some(a)).zip(b_bytes.chunks(some(b))) {
            let decoded = |bytes: &[u8], dtype: DType| {
                Tensor::from_bytes(dtype, &[bytes.len() / dtype.itemsize()], bytes)?.to_scalars()
            };
            let a_values = decoded(a_some, a.dtype()).map_err(Failure::of(Side::A))?;
            let b_values = decoded(b_some, b.dtype()).map_err(Failure::of(Side::B))?;
            a_values.into_iter().zip(b_values).for_each(|(a, b)| norms.add(a, b));
        }
        Ok(norms)
    }

    fn compare(&self, piece: &Piece) -> Result<Option<Difference>, Failure> {
        let [a, b] = piece.views.as_slice() else { return Ok(None) };
        let a_bytes = a.to_bytes().map_err(Failure::of(Side::A))?;
        let b_bytes = b.to_bytes().map_err(Failure::of(Side::B))?;
        // Equal bytes are equal elements only of one dtype.
        let is_same_dtype = a.dtype() == b.dtype();
        if is_same_dtype && a_bytes == b_bytes {
            return Ok(None);
        }
        let elements = |bytes, dtype: DType| <[u8]>::chunks_exact(bytes, dtype.itemsize());
        let pairs = elements(&a_bytes, a.dtype()).zip(elements(&b_bytes, b.dtype())).enumerate();
        let mut unequal = pairs.filter(|(_, (a, b))| !is_same_dtype || a != b).peekable();
        let mut found: Option<Difference> = None;
        while unequal.peek().is_some() {
            let some: Vec<_> = unequal.by_ref().take(DECODED_ELEMS).collect();
            let decoded = |bytes: Vec<&[u8]>, dtype| {
                Tensor::from_bytes(dtype, &[bytes.len()], &bytes.concat())?.to_scalars()
            };
            let (a_bytes, b_bytes) = some.iter().map(|(_, pair)| *pair).unzip();
            let a_values = decoded(a_bytes, a.dtype()).map_err(Failure::of(Side::A))?;
            let b_values = decoded(b_bytes, b.dtype()).map_err(Failure::of(Side::B))?;
            for ((&(position, _), a_value), b_value) in some.iter().zip(a_values).zip(b_values) {
                let (wide_a, wide_b) = widened(a_value, b_value);
                let Some(gap) = self.tolerance.gap(wide_a, wide_b) else { continue };
                match &mut found {
                    // In row-major order, the first one found stays the first.
                    Some(found) if self.is_row_major => found.add_gap(gap),
                    Some(found) => {
                        found.add_gap(gap);
                        found.keep_earlier((self.row_major_position(position, piece), a_value, b_value));
                    }
                    None => {
                        let first = (self.row_major_position(position, piece), a_value, b_value);
                        found = Some(Difference::of(gap, first));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Returns the position in the whole tensor, in row-major order, of an element of a piece.
    fn row_major_position(&self, position: usize, piece: &Piece) -> usize {
        let (mut rest, mut found) = (position, 0);
        let size = piece.views.first().map_or(&[][..], Tensor::size);
        for ((&step, &n), &start) in self.steps.iter().zip(size).zip(&piece.origin).rev() {
            found += (start + rest % n) * step;
            rest /= n;
        }
        found
    }
}

impl Difference {
    fn of(gap: Gap, first: (usize, Scalar, Scalar)) -> Self {
        let mut difference = Difference { count: 0, nan_count: 0, largest: None, first, norms: None };
        difference.add_gap(gap);
        difference
    }

    fn add_gap(&mut self, gap: Gap) {
        self.count += 1;
        match gap {
            Gap::By(absolute, relative) => self.widen((absolute, relative)),
            Gap::Nan => self.nan_count += 1,
            Gap::Unmeasured => {}
        }
    }

    fn widen(&mut self, (absolute, relative): (Scalar, f64)) {
        self.largest = Some(match self.largest {
            Some((most, most_relative)) => (larger(most, absolute), most_relative.max(relative)),
            None => (absolute, relative),
        });
    }

    fn keep_earlier(&mut self, first: (usize, Scalar, Scalar)) {
        if first.0 < self.first.0 {
            self.first = first;
        }
    }

    fn add(&mut self, other: Difference) {
        self.count += other.count;
        self.nan_count += other.nan_count;
        other.largest.into_iter().for_each(|gap| self.widen(gap));
        self.keep_earlier(other.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_names_the_tensor_that_caused_it() {
        let (plane, row) =
            (Tensor::zeros(DType::U8, &[2, 2]).unwrap(), Tensor::zeros(DType::U8, &[2]).unwrap());
        let tolerance = Tolerance { relative: 0., absolute: 0. };
        // The axes of the first tensor are not those of the second.
        let failure = compare(&plane, &row, (tolerance, false), &|_| ()).unwrap_err();
        assert_eq!(failure.side, Some(Side::B), "{failure:?}");
    }
}
