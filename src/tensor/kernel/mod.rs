//! Copies elements between strided layouts in memory.

mod transpose;
mod vectors;

use std::cmp::Reverse;
use std::convert::Infallible;

use crate::parallel;
use transpose::transpose;
pub(super) use vectors::with_wide_vectors;

/// Planes of at most this many elements are too small to transpose one by one. Up to this many planes are copied
/// together.
const SMALL_PLANE: usize = 64;

/// Rows of fewer elements are copied element by element: a call of `memcpy` takes longer.
const SHORT_ROW: usize = 8;

/// Copies of at least this size are divided between threads. It is more than a block that is read from a file at once
/// (`BLOCK_BYTES` in copy.rs), so that threads are not started for each block. Transposes of this size write past the
/// caches.
const LARGE_BYTES: usize = 8 << 20;

/// The smallest piece that a thread copies at a time, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// A dimension of a copy between two sides. The dimensions are sorted by their strides on one of them, the sorted side
/// (see [`Order`]). Strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dim {
    pub(super) n: usize,
    /// The stride on the sorted side, never negative.
    pub(super) stride: usize,
    /// The stride on the other side.
    pub(super) other_stride: isize,
}

/// The order of a copy between two sides. Its dimensions are sorted by descending stride on one side, the sorted side.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) dims: Vec<Dim>,
    /// The position of the first element on the sorted side.
    pub(super) start: usize,
    /// The position of the first element on the other side.
    pub(super) other_start: usize,
}

impl Order {
    /// Sorts dimensions, given as their size, their stride on the sorted side and that on the other side. Reverses
    /// those with a negative stride on the sorted side, drops those of size 1, and merges adjacent dimensions that step
    /// through both sides in the same way.
    pub(super) fn of(
        dims: impl Iterator<Item = (usize, isize, isize)>,
        mut start: usize,
        mut other_start: usize,
    ) -> Order {
        let mut sorted: Vec<Dim> = dims
            .filter(|&(n, ..)| n != 1)
            .map(|(n, stride, mut other_stride)| {
                if stride < 0 {
                    start = moved(start, n - 1, stride);
                    other_start = moved(other_start, n - 1, other_stride);
                    other_stride = -other_stride;
                }
                Dim { n, stride: stride.unsigned_abs(), other_stride }
            })
            .collect();
        sorted.sort_by_key(|dim| Reverse(dim.stride));
        sorted.dedup_by(|inner, outer| {
            let can_merge = outer.stride == inner.n * inner.stride
                && outer.other_stride == inner.n as isize * inner.other_stride;
            if can_merge {
                *outer = Dim { n: outer.n * inner.n, ..*inner };
            }
            can_merge
        });
        Order { dims: sorted, start, other_start }
    }

    /// Returns the same copy in the order of the other side.
    pub(super) fn in_other_order(&self) -> Order {
        let dims = self.dims.iter().map(|dim| (dim.n, dim.other_stride, dim.stride as isize));
        Order::of(dims, self.other_start, self.start)
    }

    /// Returns the number of elements.
    pub(super) fn numel(&self) -> usize {
        self.dims.iter().map(|dim| dim.n).product()
    }
}

/// Returns the number of elements from the first to the last on the sorted side, including gaps.
pub(super) fn span(dims: &[Dim]) -> usize {
    dims.iter().map(|dim| (dim.n - 1) * dim.stride).sum::<usize>() + 1
}

/// Returns the position after some steps.
pub(super) fn moved(start: usize, steps: usize, stride: isize) -> usize {
    start.wrapping_add_signed((steps as isize).wrapping_mul(stride))
}

/// Copies elements of `W` bytes. The destination is the sorted side, and no two elements share a place there. Large
/// copies are divided between threads.
pub(super) fn copy<const W: usize>(from: &[u8], to: &mut [u8], order: &Order) {
    let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
    let is_large = order.numel() * W >= LARGE_BYTES;
    // Pieces must not overlap in the destination.
    let may_cut = |outer: Dim, inner: &[Dim]| span(inner) <= outer.stride;
    let piece = |(order, to): (Order, &mut [[u8; W]])| {
        copy_piece(from, to, &order, is_large);
        Ok(())
    };
    let Ok(()) = in_parallel::<_, Infallible>(
        (order.numel() * W, usize::MAX),
        |limit_bytes, push| divide(order.clone(), to, limit_bytes / W, &may_cut, push),
        piece,
    );
}

/// Copies runs of `run` elements, which begin at `places` of the source, one after another.
pub(super) fn gather<const W: usize>(from: &[u8], to: &mut [u8], places: &[usize], run: usize) {
    let size_bytes = to.len();
    let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
    let Ok(()) = in_parallel::<_, Infallible>(
        (size_bytes, usize::MAX),
        |limit_bytes, push| {
            let count = (limit_bytes / (run * W)).max(1);
            to.chunks_mut(count * run).zip(places.chunks(count)).try_for_each(push)
        },
        |(to, places)| {
            if run == 1 {
                to.iter_mut().zip(places).for_each(|(to, &place)| *to = from[place]);
            } else {
                let runs = to.chunks_exact_mut(run).zip(places);
                runs.for_each(|(to, &place)| to.copy_from_slice(&from[place..place + run]));
            }
            Ok(())
        },
    );
}

/// Calls `work` with each piece that `feed` produces. Uses at most `most_threads` threads, or only this one if the
/// total cost is below `LARGE_BYTES`. `feed` gets a limit on the cost of a piece, in bytes.
///
/// # Errors
/// The first of `feed` or `work`.
pub(super) fn in_parallel<P: Send, E: Send>(
    (cost_bytes, most_threads): (usize, usize),
    feed: impl FnOnce(usize, &mut dyn FnMut(P) -> Result<(), E>) -> Result<(), E>,
    work: impl Fn(P) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let most_threads = if cost_bytes < LARGE_BYTES { 1 } else { most_threads.min(cost_bytes / PIECE_BYTES) };
    let thread_count = parallel::thread_count(most_threads);
    // About four pieces per thread, because some take longer than others.
    let limit_bytes =
        if thread_count == 1 { usize::MAX } else { (cost_bytes / (4 * thread_count)).max(PIECE_BYTES) };
    parallel::in_order(thread_count, |push| feed(limit_bytes, push), work, |done| done)
}

/// Halves a copy along its outermost dimension until pieces have at most `limit` elements. `may_cut` gets the outermost
/// dimension and the others.
pub(super) fn divide<'a, T, E>(
    mut order: Order,
    to: &'a mut [T],
    limit: usize,
    may_cut: &impl Fn(Dim, &[Dim]) -> bool,
    body: &mut dyn FnMut((Order, &'a mut [T])) -> Result<(), E>,
) -> Result<(), E> {
    let Some((outer, inner)) = order.dims.split_first_mut() else { return body((order, to)) };
    if outer.n == 1 {
        order.dims.remove(0);
        return divide(order, to, limit, may_cut, body);
    }
    if outer.n * inner.iter().map(|dim| dim.n).product::<usize>() <= limit || !may_cut(*outer, inner) {
        return body((order, to));
    }
    let half = outer.n / 2;
    let (first, second) = to.split_at_mut(order.start + half * outer.stride);
    let other_start = moved(order.other_start, half, outer.other_stride);
    let rest = Dim { n: outer.n - half, ..*outer };
    outer.n = half;
    let rest = Order { dims: [&[rest], &*inner].concat(), start: 0, other_start };
    divide(order, first, limit, may_cut, body)?;
    divide(rest, second, limit, may_cut, body)
}

/// Copies on this thread. The two innermost loops run along the dimension with the narrowest stride in the destination
/// and the one with the narrowest stride in the source. If those differ, the two form a plane that is transposed.
/// `is_large` is whether the whole copy is too large for the caches.
fn copy_piece<const W: usize>(from: &[[u8; W]], to: &mut [[u8; W]], order: &Order, is_large: bool) {
    let one = Dim { n: 1, stride: 1, other_stride: 1 };
    let mut dims = order.dims.clone();
    let row = dims.pop().unwrap_or(one);
    let narrowest = (0..dims.len())
        .filter(|&i| dims[i].other_stride != 0)
        .min_by_key(|&i| dims[i].other_stride.unsigned_abs());
    let is_transposed = |i: &usize| dims[*i].other_stride.unsigned_abs() < row.other_stride.unsigned_abs();
    if let Some(column) = narrowest.filter(is_transposed) {
        let column = dims.remove(column);
        if column.n * row.n <= SMALL_PLANE
            && let Some(outer) = dims.pop()
        {
            let several = |first| Dim { n: SMALL_PLANE.min(outer.n - first), ..outer };
            for_each_start(&dims, order.start, order.other_start, &mut |to_at, from_at| {
                for first in (0..outer.n).step_by(SMALL_PLANE) {
                    let (to_at, from_at) =
                        (to_at + first * outer.stride, moved(from_at, first, outer.other_stride));
                    for_each_start(&[column, row], to_at, from_at, &mut |to_at, from_at| {
                        copy_row(from, to, several(first), (to_at, from_at));
                    });
                }
            });
            return;
        }
        let mut tile = Vec::new();
        for_each_start(&dims, order.start, order.other_start, &mut |to_at, from_at| {
            transpose(from, to, (column, row), (to_at, from_at), (&mut tile, is_large));
        });
    } else {
        let outer = dims.pop().unwrap_or(one);
        for_each_start(&dims, order.start, order.other_start, &mut |to_at, from_at| {
            for i in 0..outer.n {
                copy_row(from, to, row, (to_at + i * outer.stride, moved(from_at, i, outer.other_stride)));
            }
        });
    }
}

/// Calls `body` with each pair of positions that the dimensions reach.
pub(super) fn for_each_start(
    dims: &[Dim],
    start: usize,
    other_start: usize,
    body: &mut impl FnMut(usize, usize),
) {
    match dims.split_first() {
        None => body(start, other_start),
        // A loop, because most recursive calls would be for the last dimension.
        Some((dim, [])) => {
            (0..dim.n).for_each(|i| body(start + i * dim.stride, moved(other_start, i, dim.other_stride)))
        }
        Some((dim, inner)) => {
            for i in 0..dim.n {
                for_each_start(inner, start + i * dim.stride, moved(other_start, i, dim.other_stride), body);
            }
        }
    }
}

fn copy_row<const W: usize>(
    from: &[[u8; W]],
    to: &mut [[u8; W]],
    row: Dim,
    (to_at, from_at): (usize, usize),
) {
    match (row.stride, row.other_stride) {
        (1, 1) if row.n >= SHORT_ROW => {
            to[to_at..to_at + row.n].copy_from_slice(&from[from_at..from_at + row.n])
        }
        (1, 0) => to[to_at..to_at + row.n].fill(from[from_at]),
        (1, step) if step > 0 => {
            let from = from[from_at..].iter().step_by(step as usize);
            to[to_at..to_at + row.n].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
        (1, step) if step < 0 => {
            let from = from[..=from_at].iter().rev().step_by(step.unsigned_abs());
            to[to_at..to_at + row.n].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
        _ => {
            for i in 0..row.n {
                to[to_at + i * row.stride] = from[moved(from_at, i, row.other_stride)];
            }
        }
    }
}

#[cfg(test)]
mod tests;
