//! Exchanges the rows and columns of planes.

use super::{Dim, copy_row, moved};

/// The bytes of a row of a tile. A plane is transposed one square tile at a time. Each row of a tile is on a different
/// page of the source, and each column on a different page of the destination, so with longer rows and columns fewer
/// page addresses are looked up (TLB) per byte.
const TILE_ROW_BYTES: usize = 1024;

/// The side of a tile is at most this many elements, so that it stays in the second-level cache: at most 512 KiB.
const MAX_TILE_SIDE: usize = 512;

/// The bytes of the vectors that a transpose works on.
const VECTOR_BYTES: usize = 16;

type Vector = [u8; VECTOR_BYTES];

/// The bytes of a cache line. A block of a large transpose has rows and columns of this size.
const LINE_BYTES: usize = 64;
const VECTORS_IN_LINE: usize = LINE_BYTES / VECTOR_BYTES;

/// The smallest plane that is written to memory without the caches. Smaller ones stay in the second-level cache while
/// they are copied.
const MIN_STREAMED_BYTES: usize = 512 << 10;

const PAGE_BYTES: usize = 4096;

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u8; LINE_BYTES]);

/// Copies a plane in which neighboring columns are close in the source, and neighboring rows in the destination.
/// `is_large` is whether the whole copy is too large for the caches.
pub(super) fn transpose<const W: usize>(
    from: &[[u8; W]],
    to: &mut [[u8; W]],
    dims: (Dim, Dim),
    starts: (usize, usize),
    (tile, is_large): (&mut Vec<[u8; W]>, bool),
) {
    match W {
        1 => transpose_plane::<W, 16>(from, to, dims, starts, (tile, is_large)),
        2 => transpose_plane::<W, 8>(from, to, dims, starts, (tile, is_large)),
        4 => transpose_plane::<W, 4>(from, to, dims, starts, (tile, is_large)),
        8 => transpose_plane::<W, 2>(from, to, dims, starts, (tile, is_large)),
        _ => transpose_plane::<W, 1>(from, to, dims, starts, (tile, is_large)),
    }
}

/// `L` is the number of elements in a vector.
fn transpose_plane<const W: usize, const L: usize>(
    from: &[[u8; W]],
    to: &mut [[u8; W]],
    (column, row): (Dim, Dim),
    (to_start, from_start): (usize, usize),
    (tile, is_large): (&mut Vec<[u8; W]>, bool),
) {
    let side = (TILE_ROW_BYTES / W).min(MAX_TILE_SIDE);
    let is_packed = (column.other_stride, row.stride) == (1, 1) && column.n.min(row.n) >= L;
    if let Some(first) = first_line(&to[to_start..], column, row).filter(|_| is_large && is_packed) {
        return transpose_past_caches::<W, L>(from, to, (column, row), (to_start, from_start), first);
    }
    if is_packed {
        tile.resize(side * side, [0; W]);
    }
    // The side of a tile must be at least a vector long. If less than that is left, the last tile begins earlier, and
    // overlaps the one before it.
    let tiles = |n: usize| {
        let last = if is_packed { n - L } else { n };
        (0..n).step_by(side).map(move |i| (i.min(last), side.min(n - i.min(last))))
    };
    for (c, columns) in tiles(column.n) {
        for (r, rows) in tiles(row.n) {
            let to_at = to_start + c * column.stride + r * row.stride;
            let from_at = moved(moved(from_start, c, column.other_stride), r, row.other_stride);
            let (column, row) = (Dim { n: columns, ..column }, Dim { n: rows, ..row });
            if !is_packed {
                // The longer loop is the inner one.
                let (outer, inner) = if rows < columns { (row, column) } else { (column, row) };
                for i in 0..outer.n {
                    copy_row(
                        from,
                        to,
                        inner,
                        (to_at + i * outer.stride, moved(from_at, i, outer.other_stride)),
                    );
                }
                continue;
            }
            // The rows of the source can be a power of two apart. In a tile, their cache lines do not evict each other.
            for (i, line) in tile.chunks_exact_mut(columns).take(rows).enumerate() {
                let from_at = moved(from_at, i, row.other_stride);
                line.copy_from_slice(&from[from_at..from_at + columns]);
            }
            transpose_tile::<W, L>(tile, &mut to[to_at..], column, rows);
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
            transpose_square::<W, L>(&mut square);
            for (i, vector) in square.iter().enumerate() {
                to[((c + i) * column.stride + r) * W..][..VECTOR_BYTES].copy_from_slice(vector);
            }
        }
    }
}

/// Exchanges the rows and columns of `L` vectors of `L` elements.
#[inline(always)]
fn transpose_square<const W: usize, const L: usize>(square: &mut [Vector; L]) {
    // Each step interleaves the first half of the vectors with the second. There are log2(`L`) steps.
    for step in [1, 2, 4, 8] {
        if step < L {
            let halves = *square;
            for i in 0..L / 2 {
                (square[2 * i], square[2 * i + 1]) = interleave::<W>(halves[i], halves[i + L / 2]);
            }
        }
    }
}

/// Returns the index in each row of the destination at which its first whole cache line begins, if it is the same in
/// all rows. Returns `None` also for a plane that fits in the caches, or has short rows: there, tiles are faster.
pub(super) fn first_line<const W: usize>(to: &[[u8; W]], column: Dim, row: Dim) -> Option<usize> {
    let is_small = column.n * row.n * W < MIN_STREAMED_BYTES || row.n * W < PAGE_BYTES;
    let is_same = !is_small && (column.stride * W).is_multiple_of(LINE_BYTES);
    is_same.then(|| to.as_ptr().align_offset(LINE_BYTES)).filter(|&first| first < LINE_BYTES / W)
}

/// Copies a plane in blocks: squares of which each row and each column is a cache line.
///
/// An ordinary store reads its line from memory first. In a large plane, a line is also evicted before it is complete,
/// because rows that are a power of two apart share few places in the caches.
fn transpose_past_caches<const W: usize, const L: usize>(
    from: &[[u8; W]],
    to: &mut [[u8; W]],
    (column, row): (Dim, Dim),
    (to_start, from_start): (usize, usize),
    first: usize,
) {
    let side = LINE_BYTES / W;
    let fence = Fence;
    let (from, to) = (from.as_flattened(), to.as_flattened_mut());
    let (mut block, mut transposed) =
        ([Line([0; LINE_BYTES]); LINE_BYTES], [Line([0; LINE_BYTES]); LINE_BYTES]);
    // The processor reads ahead within a page, so one page of every source row is copied before the next. The first
    // block in each row of the destination ends where its first whole cache line begins.
    for page in (0..column.n).step_by(PAGE_BYTES / W) {
        let page_end = column.n.min(page + PAGE_BYTES / W);
        for r in (0..first.min(1)).chain((first..row.n).step_by(side)) {
            let rows = if r < first { first } else { side.min(row.n - r) };
            for c in (page..page_end).step_by(side) {
                let columns = side.min(page_end - c);
                for (i, Line(line)) in block[..rows].iter_mut().enumerate() {
                    let from_at = (moved(from_start, r + i, row.other_stride) + c) * W;
                    copy_line(&from[from_at..][..columns * W], &mut line[..columns * W]);
                }
                transpose_block::<W, L>(&block, &mut transposed, (rows, columns));
                for (i, line) in transposed[..columns].iter().enumerate() {
                    let to_at = (to_start + (c + i) * column.stride + r) * W;
                    let to = &mut to[to_at..][..rows * W];
                    match to.as_chunks_mut().0 {
                        [to] => stream(&fence, to, line),
                        _ => copy_line(&line.0[..rows * W], to),
                    }
                }
            }
        }
    }
}

/// Copies at most a line.
#[inline(always)]
fn copy_line(from: &[u8], to: &mut [u8]) {
    match (from.as_chunks::<LINE_BYTES>().0, to.as_chunks_mut().0) {
        // Most lines are whole. A copy of a known length takes few instructions.
        ([from], [to]) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// Exchanges the rows and columns of a block. Only its first `rows` and `columns` are used.
#[inline(always)]
fn transpose_block<const W: usize, const L: usize>(
    from: &[Line; LINE_BYTES],
    to: &mut [Line; LINE_BYTES],
    (rows, columns): (usize, usize),
) {
    // A block has at most this many vectors in each direction. The compiler does not know that: without `min`, it would
    // check each access.
    let (rows, columns) = (rows.div_ceil(L).min(VECTORS_IN_LINE), columns.div_ceil(L).min(VECTORS_IN_LINE));
    for r in 0..rows {
        for c in 0..columns {
            let mut square = [[0; VECTOR_BYTES]; L];
            for (i, vector) in square.iter_mut().enumerate() {
                vector.copy_from_slice(&from[r * L + i].0[c * VECTOR_BYTES..][..VECTOR_BYTES]);
            }
            transpose_square::<W, L>(&mut square);
            for (i, vector) in square.iter().enumerate() {
                to[c * L + i].0[r * VECTOR_BYTES..][..VECTOR_BYTES].copy_from_slice(vector);
            }
        }
    }
}

/// Writes a line to memory without the caches. It is certain to be in memory only after the fence is dropped.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(unsafe_code, reason = "with ordinary stores, a large transpose takes twice as long")]
fn stream(_fence: &Fence, to: &mut [u8; LINE_BYTES], line: &Line) {
    use std::arch::x86_64 as x86;

    if !to.as_ptr().addr().is_multiple_of(VECTOR_BYTES) {
        *to = line.0;
        return;
    }
    for (to, from) in to.as_chunks_mut::<VECTOR_BYTES>().0.iter_mut().zip(line.0.as_chunks().0) {
        let vector: &Vector = from;
        // SAFETY:
        // - in bounds: `to` has the size of a vector;
        // - aligned: `to` is a whole number of vectors after the address that was checked;
        // - no other access before the store is complete: only `transpose_past_caches` has a fence. It does not read
        //   the destination, which it borrows for longer than the fence lives;
        // - SSE2 is part of x86-64, so every processor of this architecture has it.
        unsafe { x86::_mm_stream_si128((&raw mut *to).cast(), bytemuck::cast(*vector)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(_fence: &Fence, to: &mut [u8; LINE_BYTES], line: &Line) {
    *to = line.0;
}

/// When dropped, waits until the lines that [`stream`] wrote are in memory.
struct Fence;

impl Drop for Fence {
    #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "the fence belongs to `stream`"))]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86-64, so every processor of this architecture has it.
        unsafe {
            std::arch::x86_64::_mm_sfence();
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
pub(super) fn interleave<const W: usize>(a: Vector, b: Vector) -> (Vector, Vector) {
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
pub(super) fn interleave_portably<const W: usize>(a: Vector, b: Vector) -> (Vector, Vector) {
    let mut both = [[0; VECTOR_BYTES]; 2];
    let pairs = both.as_flattened_mut().as_chunks_mut::<W>().0.as_chunks_mut::<2>().0;
    for ((pair, a), b) in pairs.iter_mut().zip(a.as_chunks::<W>().0).zip(b.as_chunks::<W>().0) {
        *pair = [*a, *b];
    }
    (both[0], both[1])
}
