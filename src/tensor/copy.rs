//! Copies the elements of a view between its storage and memory, in row-major order.
//!
//! A copy from or to a file visits the dimensions in storage order, from the widest stride to the narrowest, so the
//! file is read forwards and about once.

use std::ops::Range;

use stridemap_format::Header;

use super::Tensor;
use super::kernel::{self, Dim, Order, moved, span};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{LockedStorage, Storage, resize_discarding};

/// The maximum number of bytes of a file that are read or written at a time.
const BLOCK_BYTES: usize = 4 << 20;

/// The longest gap that is cheaper to read than to skip with another call.
pub(super) const MAX_GAP_BYTES: usize = 16 << 10;

/// The limit on threads that read one file. Each has a buffer of a block.
const MAX_READERS: usize = 16;

/// The cost of a read from the page cache, as a number of bytes that take as long to copy.
const READ_COST_BYTES: usize = 4 << 10;

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
    gather_from(tensor.borrow_storage()?, tensor, out)
}

/// Copies all elements from `bytes`, the bytes of the storage, or from its file if they cannot be borrowed.
pub(super) fn gather_from(bytes: Option<&[u8]>, tensor: &Tensor, out: &mut [u8]) -> Result<()> {
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
    let storage = tensor.storage();
    if bytes.is_none() && tensor.is_contiguous() && !storage.reads_ahead() {
        return storage.read_at(out, (tensor.storage_offset() * W) as u64);
    }
    let order = storage_order(tensor.header());
    match bytes {
        Some(bytes) => kernel::copy::<W>(bytes, out, &order.in_other_order()),
        None => gather_file::<W>(storage, out, &order)?,
    }
    Ok(())
}

/// Reads many short runs on several threads: the kernel does not read ahead across gaps, so each read may wait for the
/// disk. Within long runs it does, so these are read by one thread.
fn gather_file<const W: usize>(storage: &Storage, out: &mut [u8], order: &Order) -> Result<()> {
    let read_count = read_count::<W>(&order.dims);
    let cost_bytes = out.len().saturating_add(read_count.saturating_mul(READ_COST_BYTES));
    let elem_cost_bytes = cost_bytes / order.numel();
    // Of a file that is far away, several ranges are fetched at once for one thread.
    let is_far = storage.reads_ahead();
    let most_threads = if out.len() / read_count < BLOCK_BYTES && !is_far { MAX_READERS } else { 1 };
    // Pieces must not share bytes of the file: each would read them again.
    let may_cut = |outer: Dim, inner: &[Dim]| {
        inner.iter().all(|dim| dim.other_stride.unsigned_abs() <= outer.other_stride.unsigned_abs())
    };
    let read = |out: &mut [u8], order: &Order| {
        let parts = || Parts::of::<W>(order, if is_far { BLOCK_BYTES } else { usize::MAX });
        let mut ahead = storage.read_ahead(parts().map(|part| part.range::<W>()));
        let mut gather = Gather { storage, out, scratch: Vec::new() };
        parts().try_for_each(|part| {
            if let Some(ahead) = &mut ahead {
                let range = part.range::<W>();
                ahead.before_read_of(range.end - range.start);
            }
            part.copy::<W>(&mut gather)
        })
    };
    let done = kernel::in_parallel(
        (cost_bytes, most_threads),
        |limit_bytes, push| {
            let out = out.as_chunks_mut::<W>().0;
            kernel::divide(order.in_other_order(), out, limit_bytes / elem_cost_bytes, &may_cut, push)
        },
        |(piece, out): (Order, &mut [[u8; W]])| read(out.as_flattened_mut(), &piece.in_other_order()),
    );
    match done {
        // One thread needs less memory.
        Err(e) if e.kind() == ErrorKind::OutOfMemory => read(out, order),
        done => done,
    }
}

fn scatter_elements<const W: usize>(bytes: &[u8], view: &Tensor, storage: &mut LockedStorage) -> Result<()> {
    if view.numel() == 0 {
        return Ok(());
    }
    let order = storage_order(view.header());
    match storage.bytes_mut()? {
        Some(out) => kernel::copy::<W>(bytes, out, &order),
        None => {
            let mut scatter = Scatter { storage, bytes, scratch: Vec::new() };
            Parts::of::<W>(&order, usize::MAX).try_for_each(|part| part.copy::<W>(&mut scatter))?;
        }
    }
    Ok(())
}

/// Returns the order of a copy that follows the storage; the other side is memory.
pub(super) fn storage_order(header: &Header) -> Order {
    let mut next_stride = 1;
    let dims = header.dims().rev().map(|(n, stride)| {
        let stride_in_memory = next_stride;
        next_stride *= n as isize;
        (n, stride, stride_in_memory)
    });
    // `Order::of` sorts stably: dimensions with equal strides, such as those of a broadcast, keep this order.
    Order::of(dims.collect::<Vec<_>>().into_iter().rev(), header.storage_offset(), 0)
}

/// The two directions of a copy between memory and a file.
trait FileCopy {
    /// Copies `n` elements that are adjacent on both sides. `storage_at` and `memory_at` are the positions of the
    /// first.
    fn run<const W: usize>(&mut self, n: usize, storage_at: usize, memory_at: usize) -> Result<()>;

    /// Copies elements whose span in the file is small enough to transfer at once.
    fn block<const W: usize>(&mut self, order: Order) -> Result<()>;
}

struct Gather<'a> {
    storage: &'a Storage,
    out: &'a mut [u8],
    scratch: Vec<u8>,
}

impl FileCopy for Gather<'_> {
    fn run<const W: usize>(&mut self, n: usize, storage_at: usize, memory_at: usize) -> Result<()> {
        let out = self.out.get_mut(memory_at * W..(memory_at + n) * W).ok_or_else(outside)?;
        self.storage.read_at(out, (storage_at * W) as u64)
    }

    /// Reads the whole span and picks the elements from it.
    fn block<const W: usize>(&mut self, order: Order) -> Result<()> {
        resize_discarding(&mut self.scratch, span(&order.dims) * W)?;
        self.storage.read_at(&mut self.scratch, (order.start * W) as u64)?;
        kernel::copy::<W>(&self.scratch, self.out, &Order { start: 0, ..order }.in_other_order());
        Ok(())
    }
}

struct Scatter<'a> {
    storage: &'a mut LockedStorage,
    bytes: &'a [u8],
    scratch: Vec<u8>,
}

impl FileCopy for Scatter<'_> {
    fn run<const W: usize>(&mut self, n: usize, storage_at: usize, memory_at: usize) -> Result<()> {
        let bytes = self.bytes.get(memory_at * W..(memory_at + n) * W).ok_or_else(outside)?;
        self.storage.write_at(bytes, (storage_at * W) as u64)
    }

    /// Writes the whole span with the elements replaced. Bytes in gaps are written back unchanged: the lock is
    /// exclusive, so nothing else has changed them.
    fn block<const W: usize>(&mut self, order: Order) -> Result<()> {
        let offset_bytes = (order.start * W) as u64;
        let span = span(&order.dims);
        resize_discarding(&mut self.scratch, span * W)?;
        if order.numel() < span {
            self.storage.read_at(&mut self.scratch, offset_bytes)?;
        }
        kernel::copy::<W>(self.bytes, &mut self.scratch, &Order { start: 0, ..order });
        self.storage.write_at(&self.scratch, offset_bytes)
    }
}

/// A part of a copy that one transfer makes.
enum Part {
    /// Elements that are adjacent on both sides, and their number.
    Run { n: usize, storage_at: usize, memory_at: usize },
    /// Elements whose span in the file is small enough to transfer at once.
    Block(Order),
}

impl Part {
    /// Returns the bytes of the storage from the first element to the last.
    fn range<const W: usize>(&self) -> Range<u64> {
        let (start, count) = match self {
            Part::Run { n, storage_at, .. } => (*storage_at, *n),
            Part::Block(order) => (order.start, span(&order.dims)),
        };
        (start * W) as u64..((start + count) * W) as u64
    }

    fn copy<const W: usize>(self, copy: &mut impl FileCopy) -> Result<()> {
        match self {
            Part::Run { n, storage_at, memory_at } => copy.run::<W>(n, storage_at, memory_at),
            Part::Block(order) => copy.block::<W>(order),
        }
    }
}

/// Divides a copy into runs and blocks, in the order of the storage.
struct Parts<'a> {
    order: &'a Order,
    /// The indices of the next part in the outer dimensions. Each of their rows is divided into parts.
    rows: Vec<usize>,
    /// The next row of the dimension after these that is not in a part yet.
    first: usize,
    /// How many rows of that dimension a part has.
    step: usize,
    is_run: bool,
    is_done: bool,
}

impl<'a> Parts<'a> {
    /// `limit_bytes` limits the length of a run.
    fn of<const W: usize>(order: &'a Order, limit_bytes: usize) -> Self {
        let mut outer_count = 0;
        let (step, is_run) = loop {
            let dims = order.dims.get(outer_count..).unwrap_or_default();
            let Some((outer, inner)) = dims.split_first() else { break (1, true) };
            if inner.is_empty() && outer.stride == 1 && outer.other_stride == 1 {
                break ((limit_bytes / W).max(1), true);
            }
            let rest = (BLOCK_BYTES / W).checked_sub(span(inner));
            if let Some(rest) = rest.filter(|_| is_dense::<W>(dims)) {
                break (rest / outer.stride.max(1) + 1, false);
            }
            outer_count += 1;
        };
        Parts { order, rows: vec![0; outer_count], first: 0, step, is_run, is_done: false }
    }

    /// Moves to the next row of the outer dimensions.
    fn advance(&mut self) {
        for (row, dim) in self.rows.iter_mut().zip(&self.order.dims).rev() {
            *row += 1;
            if *row < dim.n {
                return;
            }
            *row = 0;
        }
        self.is_done = true;
    }
}

impl Iterator for Parts<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.is_done {
            return None;
        }
        let Order { dims, start, other_start } = self.order;
        let (outer, dims) = dims.split_at(self.rows.len());
        let (mut storage_at, mut memory_at) = (*start, *other_start);
        let divided = dims.first().copied().unwrap_or(Dim { n: 1, stride: 1, other_stride: 1 });
        for (dim, row) in outer.iter().chain([&divided]).zip(self.rows.iter().chain([&self.first])) {
            storage_at += row * dim.stride;
            memory_at = moved(memory_at, *row, dim.other_stride);
        }
        let n = self.step.min(divided.n - self.first);
        self.first += n;
        if self.first == divided.n {
            self.first = 0;
            self.advance();
        }
        if self.is_run {
            return Some(Part::Run { n, storage_at, memory_at });
        }
        let inner = dims.get(1..).unwrap_or_default();
        let dims = [&[Dim { n, ..divided }], inner].concat();
        Some(Part::Block(Order { dims, start: storage_at, other_start: memory_at }))
    }
}

/// Returns the number of runs and blocks of a copy. Blocks that are longer than the limit count as one.
fn read_count<const W: usize>(dims: &[Dim]) -> usize {
    match dims.split_first() {
        Some((outer, inner)) if !is_dense::<W>(dims) => outer.n.saturating_mul(read_count::<W>(inner)),
        _ => 1,
    }
}

/// Returns whether every gap in the span is at most `MAX_GAP_BYTES`.
fn is_dense<const W: usize>(dims: &[Dim]) -> bool {
    let mut rest = dims;
    while let Some((outer, inner)) = rest.split_first() {
        if outer.stride.saturating_sub(span(inner)) * W > MAX_GAP_BYTES {
            return false;
        }
        rest = inner;
    }
    true
}

fn outside() -> Error {
    Error::new(ErrorKind::OutOfRange, "an element is outside its buffer")
}

/// Copies runs of `run` elements, which begin at `places` of the storage, into `out`, whose length is their size in
/// bytes.
pub(super) fn gather_places(tensor: &Tensor, places: &[usize], run: usize, out: &mut [u8]) -> Result<()> {
    of_width!(tensor.dtype().itemsize(), gather_places_of(tensor.storage(), places, run, out))
}

fn gather_places_of<const W: usize>(
    storage: &Storage,
    places: &[usize],
    run: usize,
    out: &mut [u8],
) -> Result<()> {
    if let Some(bytes) = storage.borrow() {
        if storage.checks().is_some() {
            let range = |&place: &usize| (place * W) as u64..((place + run) * W) as u64;
            places.iter().map(range).try_for_each(|range| storage.check(range))?;
        }
        kernel::gather::<W>(bytes, out, places, run);
        return Ok(());
    }
    // From the file, windows are read in ascending order that together contain all runs and skip long gaps.
    let (run_bytes, mut window) = (run * W, Vec::new());
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&i| places[i]);
    let ranges = order.iter().map(|&i| (places[i] * W) as u64..((places[i] + run) * W) as u64);
    let mut ahead = storage.read_ahead(ranges);
    let mut rest = order.as_slice();
    while let Some(&first) = rest.first() {
        let (start, mut last) = (places[first], places[first]);
        let is_near = |&&i: &&usize| {
            let gap = places[i].saturating_sub(last + run);
            let is_near = gap * W <= MAX_GAP_BYTES && (places[i] - start + run) * W <= BLOCK_BYTES;
            if is_near {
                last = places[i];
            }
            is_near
        };
        let count = rest.iter().take_while(is_near).count().max(1);
        let (members, after) = rest.split_at(count);
        let start_bytes = (start * W) as u64;
        if let Some(ahead) = &mut ahead {
            ahead.before_read_of((members.len() * run_bytes) as u64);
        }
        if let &[i] = members {
            storage.read_at(&mut out[i * run_bytes..][..run_bytes], start_bytes)?;
        } else {
            resize_discarding(&mut window, (last - start + run) * W)?;
            storage.read_at(&mut window, start_bytes)?;
            for &i in members {
                let found = &window[(places[i] - start) * W..][..run_bytes];
                out[i * run_bytes..][..run_bytes].copy_from_slice(found);
            }
        }
        rest = after;
    }
    Ok(())
}
