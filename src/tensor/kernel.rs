//! Copies elements between strided layouts in memory.

use std::cmp::Reverse;
use std::convert::Infallible;

use crate::parallel;

/// The bytes of a row of a tile. A tile is a square that is transposed at a time. Each of its rows is on another page of
/// the source, and each of its columns on another one of the destination, so longer ones need fewer lookups of pages.
const TILE_BYTES: usize = 1024;

/// The side of a tile is at most this many elements, so that it stays in the second-level cache: at most 512 KiB.
const MAX_TILE_SIDE: usize = 512;

/// The bytes of the vectors that a transpose works on.
const VECTOR_BYTES: usize = 16;

type Vector = [u8; VECTOR_BYTES];

/// Planes of at most this many elements are not transposed one by one, but this many at a time.
const SMALL_PLANE: usize = 64;

/// Rows of fewer elements are copied element by element: a call of `memcpy` takes longer.
const SHORT_ROW: usize = 8;

/// Copies of at least this size are divided between threads. It is more than a block of a file, so that threads are not
/// started for each.
const PARALLEL_BYTES: usize = 8 << 20;

/// The smallest piece that a thread copies at a time, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// A dimension of a copy. Strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dim {
    pub(super) n: usize,
    /// The stride on the side whose order the copy follows, never negative.
    pub(super) major: usize,
    /// The stride on the other side.
    pub(super) minor: isize,
}

/// The dimensions of a copy by descending stride on the major side, and where the copy starts on both sides.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) dims: Vec<Dim>,
    pub(super) major: usize,
    pub(super) minor: usize,
}

impl Order {
    /// Sorts dimensions of a size, a stride on the major side and one on the other. Reverses those with a negative
    /// major stride, drops those of size 1, and merges adjacent ones that step through both sides in the same way.
    pub(super) fn of(
        dims: impl Iterator<Item = (usize, isize, isize)>,
        mut major: usize,
        mut minor: usize,
    ) -> Order {
        let mut sorted: Vec<Dim> = dims
            .filter(|&(n, ..)| n != 1)
            .map(|(n, major_stride, mut minor_stride)| {
                if major_stride < 0 {
                    major = moved(major, n - 1, major_stride);
                    minor = moved(minor, n - 1, minor_stride);
                    minor_stride = -minor_stride;
                }
                Dim { n, major: major_stride.unsigned_abs(), minor: minor_stride }
            })
            .collect();
        sorted.sort_by_key(|dim| Reverse(dim.major));
        sorted.dedup_by(|inner, outer| {
            let is_one =
                outer.major == inner.n * inner.major && outer.minor == inner.n as isize * inner.minor;
            if is_one {
                *outer = Dim { n: outer.n * inner.n, ..*inner };
            }
            is_one
        });
        Order { dims: sorted, major, minor }
    }

    /// Returns the same copy in the order of the other side.
    pub(super) fn turned(&self) -> Order {
        let dims = self.dims.iter().map(|dim| (dim.n, dim.minor, dim.major as isize));
        Order::of(dims, self.minor, self.major)
    }

    /// Returns the number of elements.
    pub(super) fn numel(&self) -> usize {
        self.dims.iter().map(|dim| dim.n).product()
    }
}

/// Returns the number of elements from the first to the last on the major side, including gaps.
pub(super) fn span(dims: &[Dim]) -> usize {
    dims.iter().map(|dim| (dim.n - 1) * dim.major).sum::<usize>() + 1
}

/// Returns the position after some steps.
pub(super) fn moved(start: usize, steps: usize, stride: isize) -> usize {
    start.wrapping_add_signed((steps as isize).wrapping_mul(stride))
}

/// Copies elements of `W` bytes. The destination is the major side, and no two elements share a place there. Large
/// copies are divided between threads.
pub(super) fn copy<const W: usize>(from: &[u8], to: &mut [u8], order: &Order) {
    let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
    // Pieces must not overlap in the destination.
    let may_cut = |outer: Dim, inner: &[Dim]| span(inner) <= outer.major;
    let piece = |(order, to): (Order, &mut [[u8; W]])| {
        copy_piece(from, to, &order);
        Ok(())
    };
    let Ok(()) = divided::<_, Infallible>(
        (order.numel() * W, usize::MAX),
        |limit_bytes, push| divide(order.clone(), to, limit_bytes / W, &may_cut, push),
        piece,
    );
}

/// Copies runs of `run` elements, which begin at `places` of the source, one after another.
pub(super) fn gather<const W: usize>(from: &[u8], to: &mut [u8], places: &[usize], run: usize) {
    let size_bytes = to.len();
    let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
    let Ok(()) = divided::<_, Infallible>(
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

/// Copies runs of `run` elements, one after another in the source, to `places`. The last one wins.
pub(super) fn scatter<const W: usize>(from: &[u8], to: &mut [u8], places: &[usize], run: usize) {
    let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
    if run == 1 {
        from.iter().zip(places).for_each(|(from, &place)| to[place] = *from);
    } else {
        let runs = from.chunks_exact(run).zip(places);
        runs.for_each(|(from, &place)| to[place..place + run].copy_from_slice(from));
    }
}

/// Calls `work` with the pieces that `feed` passes on, on at most `most_threads` threads if all pieces together cost as
/// much as a large copy. `feed` gets a limit on the cost of a piece, in bytes.
///
/// # Errors
/// The first of `feed` or `work`.
pub(super) fn divided<P: Send, E: Send>(
    (cost_bytes, most_threads): (usize, usize),
    feed: impl FnOnce(usize, &mut dyn FnMut(P) -> Result<(), E>) -> Result<(), E>,
    work: impl Fn(P) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let most_threads =
        if cost_bytes < PARALLEL_BYTES { 1 } else { most_threads.min(cost_bytes / PIECE_BYTES) };
    let thread_count = parallel::thread_count(most_threads);
    // Several pieces a thread, because some take longer.
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
    let (first, second) = to.split_at_mut(order.major + half * outer.major);
    let minor = moved(order.minor, half, outer.minor);
    let rest = Dim { n: outer.n - half, ..*outer };
    outer.n = half;
    let rest = Order { dims: [&[rest], &*inner].concat(), major: 0, minor };
    divide(order, first, limit, may_cut, body)?;
    divide(rest, second, limit, may_cut, body)
}

/// Copies on this thread. The two innermost loops run along the dimension with the narrowest stride in the destination
/// and the one with the narrowest stride in the source. If those differ, the two form a plane that is transposed.
fn copy_piece<const W: usize>(from: &[[u8; W]], to: &mut [[u8; W]], order: &Order) {
    let one = Dim { n: 1, major: 1, minor: 1 };
    let mut dims = order.dims.clone();
    let row = dims.pop().unwrap_or(one);
    let narrowest =
        (0..dims.len()).filter(|&i| dims[i].minor != 0).min_by_key(|&i| dims[i].minor.unsigned_abs());
    let is_transposed = |i: &usize| dims[*i].minor.unsigned_abs() < row.minor.unsigned_abs();
    if let Some(column) = narrowest.filter(is_transposed) {
        let column = dims.remove(column);
        if column.n * row.n <= SMALL_PLANE
            && let Some(outer) = dims.pop()
        {
            let several = |first| Dim { n: SMALL_PLANE.min(outer.n - first), ..outer };
            for_each_start(&dims, order.major, order.minor, &mut |t, f| {
                for first in (0..outer.n).step_by(SMALL_PLANE) {
                    let (t, f) = (t + first * outer.major, moved(f, first, outer.minor));
                    for_each_start(&[column, row], t, f, &mut |t, f| {
                        copy_row(from, to, several(first), (t, f));
                    });
                }
            });
            return;
        }
        let mut tile = Vec::new();
        for_each_start(&dims, order.major, order.minor, &mut |t, f| {
            transpose(from, to, (column, row), (t, f), &mut tile);
        });
    } else {
        let outer = dims.pop().unwrap_or(one);
        for_each_start(&dims, order.major, order.minor, &mut |t, f| {
            for i in 0..outer.n {
                copy_row(from, to, row, (t + i * outer.major, moved(f, i, outer.minor)));
            }
        });
    }
}

/// Calls `body` with each pair of positions that the dimensions reach.
fn for_each_start(dims: &[Dim], major: usize, minor: usize, body: &mut impl FnMut(usize, usize)) {
    match dims.split_first() {
        None => body(major, minor),
        // Most calls would be for the last dimension.
        Some((dim, [])) => (0..dim.n).for_each(|i| body(major + i * dim.major, moved(minor, i, dim.minor))),
        Some((dim, inner)) => {
            for i in 0..dim.n {
                for_each_start(inner, major + i * dim.major, moved(minor, i, dim.minor), body);
            }
        }
    }
}

fn copy_row<const W: usize>(from: &[[u8; W]], to: &mut [[u8; W]], row: Dim, (t, f): (usize, usize)) {
    match (row.major, row.minor) {
        (1, 1) if row.n >= SHORT_ROW => to[t..t + row.n].copy_from_slice(&from[f..f + row.n]),
        (1, 0) => to[t..t + row.n].fill(from[f]),
        (1, step) if step > 0 => {
            let from = from[f..].iter().step_by(step as usize);
            to[t..t + row.n].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
        (1, step) if step < 0 => {
            let from = from[..=f].iter().rev().step_by(step.unsigned_abs());
            to[t..t + row.n].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
        _ => {
            for i in 0..row.n {
                to[t + i * row.major] = from[moved(f, i, row.minor)];
            }
        }
    }
}

/// Copies a plane whose columns are close in the source and whose rows are close in the destination, tile by tile.
fn transpose<const W: usize>(
    from: &[[u8; W]],
    to: &mut [[u8; W]],
    (column, row): (Dim, Dim),
    (t, f): (usize, usize),
    tile: &mut Vec<[u8; W]>,
) {
    let (side, lanes) = ((TILE_BYTES / W).min(MAX_TILE_SIDE), VECTOR_BYTES / W);
    let is_packed = (column.minor, row.major) == (1, 1) && column.n.min(row.n) >= lanes;
    if is_packed {
        tile.resize(side * side, [0; W]);
    }
    // A tile has at least as many elements as a vector, so the last one may begin before the end of the one before it.
    let tiles = |n: usize| {
        let last = if is_packed { n - lanes } else { n };
        (0..n).step_by(side).map(move |i| (i.min(last), side.min(n - i.min(last))))
    };
    for (c, columns) in tiles(column.n) {
        for (r, rows) in tiles(row.n) {
            let t = t + c * column.major + r * row.major;
            let f = moved(moved(f, c, column.minor), r, row.minor);
            let (column, row) = (Dim { n: columns, ..column }, Dim { n: rows, ..row });
            if !is_packed {
                // The longer loop is the inner one.
                let (outer, inner) = if rows < columns { (row, column) } else { (column, row) };
                for i in 0..outer.n {
                    copy_row(from, to, inner, (t + i * outer.major, moved(f, i, outer.minor)));
                }
                continue;
            }
            // The rows of the source can be a power of two apart. In a tile, their cache lines do not evict each other.
            for (i, line) in tile.chunks_exact_mut(columns).take(rows).enumerate() {
                let f = moved(f, i, row.minor);
                line.copy_from_slice(&from[f..f + columns]);
            }
            let to = &mut to[t..];
            match W {
                1 => transpose_tile::<W, 16>(tile, to, column, rows),
                2 => transpose_tile::<W, 8>(tile, to, column, rows),
                4 => transpose_tile::<W, 4>(tile, to, column, rows),
                8 => transpose_tile::<W, 2>(tile, to, column, rows),
                _ => transpose_tile::<W, 1>(tile, to, column, rows),
            }
        }
    }
}

/// Writes a tile with rows and columns exchanged. `L` is the number of elements in a vector. A square of `L` vectors is
/// transposed in registers.
fn transpose_tile<const W: usize, const L: usize>(
    tile: &[[u8; W]],
    to: &mut [[u8; W]],
    column: Dim,
    rows: usize,
) {
    let (tile, to) = (tile.as_flattened(), to.as_flattened_mut());
    for c in (0..column.n).step_by(L).map(|c| c.min(column.n - L)) {
        for r in (0..rows).step_by(L).map(|r| r.min(rows - L)) {
            let mut square = [[0; VECTOR_BYTES]; L];
            for (i, vector) in square.iter_mut().enumerate() {
                vector.copy_from_slice(&tile[((r + i) * column.n + c) * W..][..VECTOR_BYTES]);
            }
            // Each step interleaves the first half of the vectors with the second. There is one for each bit of `L`.
            for step in [1, 2, 4, 8] {
                if step < L {
                    let halves = square;
                    for i in 0..L / 2 {
                        (square[2 * i], square[2 * i + 1]) = interleave::<W>(halves[i], halves[i + L / 2]);
                    }
                }
            }
            for (i, vector) in square.iter().enumerate() {
                to[((c + i) * column.major + r) * W..][..VECTOR_BYTES].copy_from_slice(vector);
            }
        }
    }
}

/// Interleaves the elements of two vectors. Returns the first and the second half.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(
    unsafe_code,
    reason = "the compiler does not find these instructions, and the loop takes twice as long"
)]
fn interleave<const W: usize>(a: Vector, b: Vector) -> (Vector, Vector) {
    use std::arch::x86_64 as x86;

    #[inline]
    #[target_feature(enable = "sse2")]
    fn unpack<const W: usize>(a: x86::__m128i, b: x86::__m128i) -> (x86::__m128i, x86::__m128i) {
        match W {
            1 => (x86::_mm_unpacklo_epi8(a, b), x86::_mm_unpackhi_epi8(a, b)),
            2 => (x86::_mm_unpacklo_epi16(a, b), x86::_mm_unpackhi_epi16(a, b)),
            4 => (x86::_mm_unpacklo_epi32(a, b), x86::_mm_unpackhi_epi32(a, b)),
            _ => (x86::_mm_unpacklo_epi64(a, b), x86::_mm_unpackhi_epi64(a, b)),
        }
    }
    // SAFETY: SSE2 is part of x86-64, so every processor of this architecture has it.
    let (low, high) = unsafe { unpack::<W>(bytemuck::cast(a), bytemuck::cast(b)) };
    (bytemuck::cast(low), bytemuck::cast(high))
}

#[cfg(not(target_arch = "x86_64"))]
use interleave_portably as interleave;

/// The same in plain Rust, for other architectures.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn interleave_portably<const W: usize>(a: Vector, b: Vector) -> (Vector, Vector) {
    let mut both = [[0; VECTOR_BYTES]; 2];
    let pairs = both.as_flattened_mut().as_chunks_mut::<W>().0.as_chunks_mut::<2>().0;
    for ((pair, a), b) in pairs.iter_mut().zip(a.as_chunks::<W>().0).zip(b.as_chunks::<W>().0) {
        *pair = [*a, *b];
    }
    (both[0], both[1])
}

#[cfg(test)]
mod tests;
