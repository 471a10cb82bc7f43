//! Copies the elements of a view, in row-major order, out of wherever its storage is.
//!
//! A copy is a list of dimensions, each with a stride in the source and one in the destination. They are walked in the
//! source's order, from the widest stride to the narrowest, so that a file is read forwards and about once.

use super::Tensor;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
use crate::storage::Storage;

/// How much of a file is read at a time, at most.
const READ_BYTES: usize = 4 << 20;

/// Bytes that are cheaper to read than to step over with another call.
const MAX_GAP_BYTES: usize = 16 << 10;

/// The side of a square that is transposed at once: both of its sides stay in the first-level cache.
const TILE: usize = 32;

/// Strides and offsets are in elements.
#[derive(Clone, Copy, Debug)]
struct Dim {
    n: usize,
    /// In the source, never negative.
    src: usize,
    dst: isize,
}

/// Copies all elements into `out`, which holds exactly as many bytes.
pub(super) fn gather(tensor: &Tensor, out: &mut [u8]) -> Result<()> {
    match tensor.dtype().itemsize() {
        1 => gather_elements::<1>(tensor, out),
        2 => gather_elements::<2>(tensor, out),
        4 => gather_elements::<4>(tensor, out),
        8 => gather_elements::<8>(tensor, out),
        _ => gather_elements::<16>(tensor, out),
    }
}

fn gather_elements<const W: usize>(tensor: &Tensor, out: &mut [u8]) -> Result<()> {
    debug_assert_eq!(out.len(), tensor.nbytes());
    if tensor.numel() == 0 {
        return Ok(());
    }
    let storage = tensor.storage();
    let (dims, src, dst) = source_order(tensor.layout());
    if let Some(bytes) = storage.borrow() {
        copy(bytes.as_chunks::<W>().0, out.as_chunks_mut::<W>().0, &dims, src, dst);
        return Ok(());
    }
    FileCopy::<W> { storage, out, scratch: Vec::new() }.run(&dims, src, dst)
}

/// The dimensions by descending source stride, none of size 1, those that continue each other joined; and where in
/// source and destination to begin.
fn source_order(layout: &Layout) -> (Vec<Dim>, usize, usize) {
    let (mut src_start, mut dst_start) = (layout.offset(), 0);
    let mut dims = Vec::with_capacity(layout.rank());
    let mut dst_stride = 1;
    for (n, stride) in layout.dims().rev().filter(|&(n, _)| n != 1) {
        let (src, mut dst) = (stride.unsigned_abs(), dst_stride as isize);
        if stride < 0 {
            // Walk it forwards in the source, backwards in the destination.
            src_start -= (n - 1) * src;
            dst_start += (n - 1) * dst_stride;
            dst = -dst;
        }
        dims.push(Dim { n, src, dst });
        dst_stride *= n;
    }
    dims.reverse();
    dims.sort_by_key(|dim| std::cmp::Reverse(dim.src));
    dims.dedup_by(|inner, outer| {
        let is_one = outer.src == inner.n * inner.src && outer.dst == inner.n as isize * inner.dst;
        if is_one {
            *outer = Dim { n: outer.n * inner.n, ..*inner };
        }
        is_one
    });
    (dims, src_start, dst_start)
}

/// The elements from the first to the last, those stepped over included.
fn span(dims: &[Dim]) -> usize {
    dims.iter().map(|dim| (dim.n - 1) * dim.src).sum::<usize>() + 1
}

struct FileCopy<'a, const W: usize> {
    storage: &'a Storage,
    out: &'a mut [u8],
    scratch: Vec<u8>,
}

impl<const W: usize> FileCopy<'_, W> {
    fn run(&mut self, dims: &[Dim], src: usize, dst: usize) -> Result<()> {
        let Some((&outer, inner)) = dims.split_first() else { return self.read_run(1, src, dst) };
        if inner.is_empty() && outer.src == 1 && outer.dst == 1 {
            return self.read_run(outer.n, src, dst);
        }
        let inner_span = span(inner);
        let step = outer.src.max(1);
        let rows = READ_BYTES
            .checked_div(W)
            .and_then(|elems| elems.checked_sub(inner_span))
            .map(|rest| rest / step + 1);
        match rows {
            Some(rows) if is_dense::<W>(dims) => {
                for first in (0..outer.n).step_by(rows) {
                    let block = Dim { n: rows.min(outer.n - first), ..outer };
                    let block_dims = [&[block], inner].concat();
                    self.read_block(&block_dims, src + first * outer.src, moved(dst, first, outer.dst))?;
                }
            }
            _ => {
                for row in 0..outer.n {
                    self.run(inner, src + row * outer.src, moved(dst, row, outer.dst))?;
                }
            }
        }
        Ok(())
    }

    /// Elements that stand together on both sides.
    fn read_run(&mut self, n: usize, src: usize, dst: usize) -> Result<()> {
        let out = self.out.get_mut(dst * W..(dst + n) * W).ok_or_else(outside)?;
        self.storage.read_at(out, (src * W) as u64)
    }

    /// Reads a span of the file as it is and picks the elements from it.
    fn read_block(&mut self, dims: &[Dim], src: usize, dst: usize) -> Result<()> {
        self.scratch.resize(span(dims) * W, 0);
        self.storage.read_at(&mut self.scratch, (src * W) as u64)?;
        copy(self.scratch.as_chunks::<W>().0, self.out.as_chunks_mut::<W>().0, dims, 0, dst);
        Ok(())
    }
}

/// Whether nowhere in the span so much is stepped over that it should not be read.
fn is_dense<const W: usize>(dims: &[Dim]) -> bool {
    let mut rest = dims;
    while let Some((outer, inner)) = rest.split_first() {
        if outer.src.saturating_sub(span(inner)) * W > MAX_GAP_BYTES {
            return false;
        }
        rest = inner;
    }
    true
}

fn moved(start: usize, steps: usize, stride: isize) -> usize {
    start.wrapping_add_signed(steps as isize * stride)
}

fn outside() -> Error {
    Error::new(ErrorKind::OutOfRange, "an element lies outside its buffer")
}

/// Copies within memory. The two innermost loops run along the dimension that is narrowest in the destination and the
/// one that is narrowest in the source, in tiles when those are two.
fn copy<const W: usize>(
    src: &[[u8; W]],
    dst: &mut [[u8; W]],
    dims: &[Dim],
    src_start: usize,
    dst_start: usize,
) {
    let narrowest_dst = (0..dims.len()).min_by_key(|&i| dims.get(i).map(|dim| dim.dst.unsigned_abs()));
    let Some(row_axis) = narrowest_dst else {
        copy_row(src, dst, Dim { n: 1, src: 1, dst: 1 }, src_start, dst_start);
        return;
    };
    let mut outer = dims.to_vec();
    let row = outer.remove(row_axis);
    // The narrowest in the source stands last; when it is not the row, the two make a plane that is transposed.
    let column = if row.src > 1 { outer.pop() } else { None };
    for_each_start(&outer, src_start, dst_start, &mut |s, d| match column {
        None => copy_row(src, dst, row, s, d),
        Some(column) => {
            for c in (0..column.n).step_by(TILE) {
                for r in (0..row.n).step_by(TILE) {
                    let tile_row = Dim { n: TILE.min(row.n - r), ..row };
                    for c in c..column.n.min(c + TILE) {
                        let s = s + c * column.src + r * row.src;
                        copy_row(src, dst, tile_row, s, moved(moved(d, c, column.dst), r, row.dst));
                    }
                }
            }
        }
    });
}

/// Calls `body` with every pair of offsets that the dimensions reach.
fn for_each_start(dims: &[Dim], src: usize, dst: usize, body: &mut impl FnMut(usize, usize)) {
    match dims.split_first() {
        None => body(src, dst),
        Some((dim, inner)) => {
            for i in 0..dim.n {
                for_each_start(inner, src + i * dim.src, moved(dst, i, dim.dst), body);
            }
        }
    }
}

fn copy_row<const W: usize>(src: &[[u8; W]], dst: &mut [[u8; W]], dim: Dim, s: usize, d: usize) {
    match (dim.src, dim.dst) {
        (1, 1) => dst[d..d + dim.n].copy_from_slice(&src[s..s + dim.n]),
        (0, 1) => dst[d..d + dim.n].fill(src[s]),
        _ => {
            for i in 0..dim.n {
                dst[moved(d, i, dim.dst)] = src[s + i * dim.src];
            }
        }
    }
}
