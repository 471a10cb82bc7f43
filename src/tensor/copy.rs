//! Copies the elements of a view between its storage and memory, in row-major order.
//!
//! A copy is a list of dimensions, each with a stride in the storage and one in memory. It visits them in storage
//! order, from the widest stride to the narrowest, so a file is read forwards and about once.

use super::Tensor;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
use crate::memory::resize_discarding;
use crate::storage::{LockedStorage, Storage};

/// The most bytes of a file that are read or written at a time.
const BLOCK_BYTES: usize = 4 << 20;

/// The longest gap that is cheaper to read than to skip with another call.
const MAX_GAP_BYTES: usize = 16 << 10;

/// The side of the square that is transposed at a time. Its rows on both sides stay in the first-level cache.
const TILE: usize = 32;

/// A dimension of a copy. Strides and offsets are in elements.
#[derive(Clone, Copy, Debug)]
struct Dim {
    n: usize,
    /// The stride in the storage, never negative.
    storage: usize,
    memory: isize,
}

/// Calls a function with the width of an element, in bytes, as a const argument.
macro_rules! of_width {
    ($itemsize:expr, $function:ident($($argument:expr),*)) => {
        match $itemsize {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            4 => $function::<4>($($argument),*),
            8 => $function::<8>($($argument),*),
            _ => $function::<16>($($argument),*),
        }
    };
}

/// Copies all elements into `out`, whose length is their size in bytes.
pub(super) fn gather(tensor: &Tensor, out: &mut [u8]) -> Result<()> {
    gather_from(tensor.storage().borrow(), tensor, out)
}

/// Copies all elements of a view of the locked storage.
pub(super) fn gather_locked(view: &Tensor, storage: &LockedStorage, out: &mut [u8]) -> Result<()> {
    gather_from(storage.bytes()?, view, out)
}

/// Copies all elements from `bytes`, the bytes of the storage, or from its file if they cannot be borrowed.
fn gather_from(bytes: Option<&[u8]>, tensor: &Tensor, out: &mut [u8]) -> Result<()> {
    debug_assert_eq!(out.len(), tensor.nbytes());
    of_width!(tensor.dtype().itemsize(), gather_elements(bytes, tensor, out))
}

/// Copies `bytes` to all elements of a view of the locked storage. The sizes match, and the view does not overlap
/// itself.
pub(super) fn scatter(bytes: &[u8], view: &Tensor, storage: &mut LockedStorage) -> Result<()> {
    debug_assert_eq!(bytes.len(), view.nbytes());
    of_width!(view.dtype().itemsize(), scatter_elements(bytes, view, storage))
}

fn gather_elements<const W: usize>(bytes: Option<&[u8]>, tensor: &Tensor, out: &mut [u8]) -> Result<()> {
    if tensor.numel() == 0 {
        return Ok(());
    }
    let (dims, start, memory) = storage_order(tensor.layout());
    match bytes {
        Some(bytes) => take::<W>(bytes, out, &dims, start, memory),
        None => {
            let storage = tensor.storage();
            walk_file::<W>(&mut Gather { storage, out, scratch: Vec::new() }, &dims, start, memory)?;
        }
    }
    Ok(())
}

fn scatter_elements<const W: usize>(bytes: &[u8], view: &Tensor, storage: &mut LockedStorage) -> Result<()> {
    if view.numel() == 0 {
        return Ok(());
    }
    let (dims, start, memory) = storage_order(view.layout());
    match storage.bytes_mut()? {
        Some(out) => put::<W>(bytes, out, &dims, start, memory),
        None => walk_file::<W>(&mut Scatter { storage, bytes, scratch: Vec::new() }, &dims, start, memory)?,
    }
    Ok(())
}

/// Returns the dimensions by descending stride in the storage, and the start in the storage and in memory. Drops
/// dimensions of size 1, and merges adjacent ones that step through memory and storage in the same way.
fn storage_order(layout: &Layout) -> (Vec<Dim>, usize, usize) {
    let (mut storage_start, mut memory_start) = (layout.offset(), 0);
    let mut dims = Vec::with_capacity(layout.rank());
    let mut memory_stride = 1;
    for (n, stride) in layout.dims().rev().filter(|&(n, _)| n != 1) {
        let (storage, mut memory) = (stride.unsigned_abs(), memory_stride as isize);
        if stride < 0 {
            // Walk forwards in the storage, backwards in memory.
            storage_start -= (n - 1) * storage;
            memory_start += (n - 1) * memory_stride;
            memory = -memory;
        }
        dims.push(Dim { n, storage, memory });
        memory_stride *= n;
    }
    dims.reverse();
    dims.sort_by_key(|dim| std::cmp::Reverse(dim.storage));
    dims.dedup_by(|inner, outer| {
        let is_one =
            outer.storage == inner.n * inner.storage && outer.memory == inner.n as isize * inner.memory;
        if is_one {
            *outer = Dim { n: outer.n * inner.n, ..*inner };
        }
        is_one
    });
    (dims, storage_start, memory_start)
}

/// Returns the number of elements from the first to the last, including gaps.
fn span(dims: &[Dim]) -> usize {
    dims.iter().map(|dim| (dim.n - 1) * dim.storage).sum::<usize>() + 1
}

/// The two directions of a copy between memory and a file.
trait FileCopy {
    /// Copies elements that are adjacent on both sides.
    fn run<const W: usize>(&mut self, n: usize, storage: usize, memory: usize) -> Result<()>;

    /// Copies elements whose span in the file is small enough to transfer at once.
    fn block<const W: usize>(&mut self, dims: &[Dim], storage: usize, memory: usize) -> Result<()>;
}

struct Gather<'a> {
    storage: &'a Storage,
    out: &'a mut [u8],
    scratch: Vec<u8>,
}

impl FileCopy for Gather<'_> {
    fn run<const W: usize>(&mut self, n: usize, storage: usize, memory: usize) -> Result<()> {
        let out = self.out.get_mut(memory * W..(memory + n) * W).ok_or_else(outside)?;
        self.storage.read_at(out, (storage * W) as u64)
    }

    /// Reads the whole span and picks the elements from it.
    fn block<const W: usize>(&mut self, dims: &[Dim], storage: usize, memory: usize) -> Result<()> {
        resize_discarding(&mut self.scratch, span(dims) * W)?;
        self.storage.read_at(&mut self.scratch, (storage * W) as u64)?;
        take::<W>(&self.scratch, self.out, dims, 0, memory);
        Ok(())
    }
}

struct Scatter<'a> {
    storage: &'a mut LockedStorage,
    bytes: &'a [u8],
    scratch: Vec<u8>,
}

impl FileCopy for Scatter<'_> {
    fn run<const W: usize>(&mut self, n: usize, storage: usize, memory: usize) -> Result<()> {
        let bytes = self.bytes.get(memory * W..(memory + n) * W).ok_or_else(outside)?;
        self.storage.write_at(bytes, (storage * W) as u64)
    }

    /// Writes the whole span with the elements replaced. Bytes in gaps are written back unchanged: the lock is
    /// exclusive, so nothing else has changed them.
    fn block<const W: usize>(&mut self, dims: &[Dim], storage: usize, memory: usize) -> Result<()> {
        let offset_bytes = (storage * W) as u64;
        resize_discarding(&mut self.scratch, span(dims) * W)?;
        if dims.iter().map(|dim| dim.n).product::<usize>() < span(dims) {
            self.storage.read_at(&mut self.scratch, offset_bytes)?;
        }
        put::<W>(self.bytes, &mut self.scratch, dims, 0, memory);
        self.storage.write_at(&self.scratch, offset_bytes)
    }
}

/// Divides a copy into runs and blocks.
fn walk_file<const W: usize>(
    copy: &mut impl FileCopy,
    dims: &[Dim],
    storage: usize,
    memory: usize,
) -> Result<()> {
    let Some((&outer, inner)) = dims.split_first() else { return copy.run::<W>(1, storage, memory) };
    if inner.is_empty() && outer.storage == 1 && outer.memory == 1 {
        return copy.run::<W>(outer.n, storage, memory);
    }
    let inner_span = span(inner);
    let step = outer.storage.max(1);
    let rows = BLOCK_BYTES
        .checked_div(W)
        .and_then(|elems| elems.checked_sub(inner_span))
        .map(|rest| rest / step + 1);
    match rows {
        Some(rows) if is_dense::<W>(dims) => {
            for first in (0..outer.n).step_by(rows) {
                let block = Dim { n: rows.min(outer.n - first), ..outer };
                let block_dims = [&[block], inner].concat();
                let memory = moved(memory, first, outer.memory);
                copy.block::<W>(&block_dims, storage + first * outer.storage, memory)?;
            }
        }
        _ => {
            for row in 0..outer.n {
                let memory = moved(memory, row, outer.memory);
                walk_file::<W>(copy, inner, storage + row * outer.storage, memory)?;
            }
        }
    }
    Ok(())
}

/// Returns whether every gap in the span is at most `MAX_GAP_BYTES`.
fn is_dense<const W: usize>(dims: &[Dim]) -> bool {
    let mut rest = dims;
    while let Some((outer, inner)) = rest.split_first() {
        if outer.storage.saturating_sub(span(inner)) * W > MAX_GAP_BYTES {
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
    Error::new(ErrorKind::OutOfRange, "an element is outside its buffer")
}

/// Copies elements out of a storage that is in memory.
fn take<const W: usize>(storage: &[u8], out: &mut [u8], dims: &[Dim], start: usize, memory: usize) {
    let (storage, out) = (storage.as_chunks::<W>().0, out.as_chunks_mut::<W>().0);
    for_each_row(dims, start, memory, &mut |dim, s, m| match (dim.storage, dim.memory) {
        (1, 1) => out[m..m + dim.n].copy_from_slice(&storage[s..s + dim.n]),
        (0, 1) => out[m..m + dim.n].fill(storage[s]),
        _ => {
            for i in 0..dim.n {
                out[moved(m, i, dim.memory)] = storage[s + i * dim.storage];
            }
        }
    });
}

/// Copies elements into a storage that is in memory.
fn put<const W: usize>(bytes: &[u8], storage: &mut [u8], dims: &[Dim], start: usize, memory: usize) {
    let (bytes, storage) = (bytes.as_chunks::<W>().0, storage.as_chunks_mut::<W>().0);
    for_each_row(dims, start, memory, &mut |dim, s, m| match (dim.storage, dim.memory) {
        (1, 1) => storage[s..s + dim.n].copy_from_slice(&bytes[m..m + dim.n]),
        _ => {
            for i in 0..dim.n {
                storage[s + i * dim.storage] = bytes[moved(m, i, dim.memory)];
            }
        }
    });
}

/// Calls `body` for rows that together contain all elements, with the dimension of the row and its start in the
/// storage and in memory. The two innermost loops run along the dimension with the narrowest stride in memory and the
/// one with the narrowest stride in the storage. If those differ, they run in tiles.
fn for_each_row(dims: &[Dim], storage: usize, memory: usize, body: &mut impl FnMut(Dim, usize, usize)) {
    let narrowest = (0..dims.len()).min_by_key(|&i| dims.get(i).map(|dim| dim.memory.unsigned_abs()));
    let Some(row_axis) = narrowest else {
        body(Dim { n: 1, storage: 1, memory: 1 }, storage, memory);
        return;
    };
    let mut outer = dims.to_vec();
    let row = outer.remove(row_axis);
    // The narrowest dimension in the storage is last. If it is not the row, the two form a plane that is transposed.
    let column = if row.storage > 1 { outer.pop() } else { None };
    for_each_start(&outer, storage, memory, &mut |s, m| match column {
        None => body(row, s, m),
        Some(column) => {
            for c in (0..column.n).step_by(TILE) {
                for r in (0..row.n).step_by(TILE) {
                    let tile_row = Dim { n: TILE.min(row.n - r), ..row };
                    for c in c..column.n.min(c + TILE) {
                        let s = s + c * column.storage + r * row.storage;
                        body(tile_row, s, moved(moved(m, c, column.memory), r, row.memory));
                    }
                }
            }
        }
    });
}

/// Calls `body` with every pair of offsets that the dimensions reach.
fn for_each_start(dims: &[Dim], storage: usize, memory: usize, body: &mut impl FnMut(usize, usize)) {
    match dims.split_first() {
        None => body(storage, memory),
        Some((dim, inner)) => {
            for i in 0..dim.n {
                for_each_start(inner, storage + i * dim.storage, moved(memory, i, dim.memory), body);
            }
        }
    }
}

/// Copies the elements at `places` of the storage into `out`, whose length is their size in bytes.
pub(super) fn gather_places(tensor: &Tensor, places: &[usize], out: &mut [u8]) -> Result<()> {
    of_width!(tensor.dtype().itemsize(), gather_places_of(tensor.storage(), places, out))
}

/// Copies `bytes`, elements of `itemsize`, to `places` of the locked storage, one per place. If a place is repeated,
/// the last element wins.
pub(super) fn scatter_places(
    bytes: &[u8],
    itemsize: usize,
    places: &[usize],
    storage: &mut LockedStorage,
) -> Result<()> {
    of_width!(itemsize, scatter_places_of(bytes, places, storage))
}

fn gather_places_of<const W: usize>(storage: &Storage, places: &[usize], out: &mut [u8]) -> Result<()> {
    let out = out.as_chunks_mut::<W>().0;
    if let Some(bytes) = storage.borrow() {
        let elements = bytes.as_chunks::<W>().0;
        out.iter_mut().zip(places).for_each(|(out, &place)| *out = elements[place]);
        return Ok(());
    }
    let mut window = Vec::new();
    for_each_window::<W>(places, |start, length, members| {
        resize_discarding(&mut window, length * W)?;
        storage.read_at(&mut window, (start * W) as u64)?;
        let elements = window.as_chunks::<W>().0;
        members.iter().for_each(|&i| out[i] = elements[places[i] - start]);
        Ok(())
    })
}

fn scatter_places_of<const W: usize>(
    bytes: &[u8],
    places: &[usize],
    storage: &mut LockedStorage,
) -> Result<()> {
    let bytes = bytes.as_chunks::<W>().0;
    if let Some(out) = storage.bytes_mut()? {
        let elements = out.as_chunks_mut::<W>().0;
        bytes.iter().zip(places).for_each(|(element, &place)| elements[place] = *element);
        return Ok(());
    }
    let mut window = Vec::new();
    for_each_window::<W>(places, |start, length, members| {
        resize_discarding(&mut window, length * W)?;
        storage.read_at(&mut window, (start * W) as u64)?;
        let elements = window.as_chunks_mut::<W>().0;
        members.iter().for_each(|&i| elements[places[i] - start] = bytes[i]);
        storage.write_at(&window, (start * W) as u64)
    })
}

/// Calls `body` with windows of a file, in ascending order, that together contain all places and skip long gaps. It
/// gets the start and the length of the window, and the indices of its places, sorted by place. Indices of equal
/// places keep their order.
fn for_each_window<const W: usize>(
    places: &[usize],
    mut body: impl FnMut(usize, usize, &[usize]) -> Result<()>,
) -> Result<()> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&i| places[i]);
    let mut rest = order.as_slice();
    while let Some(&first) = rest.first() {
        let (start, mut last) = (places[first], places[first]);
        let is_near = |&&i: &&usize| {
            let is_near = (places[i] - last) * W <= MAX_GAP_BYTES && (places[i] - start) * W < BLOCK_BYTES;
            if is_near {
                last = places[i];
            }
            is_near
        };
        let count = rest.iter().take_while(is_near).count();
        let (members, after) = rest.split_at(count);
        body(start, last - start + 1, members)?;
        rest = after;
    }
    Ok(())
}
