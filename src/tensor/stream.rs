//! Reads the elements of a view piece by piece, on several threads.

use std::cmp::Reverse;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use stridemap_format::{CHUNK_BYTES, DType};

use super::{Source, Tensor, copy};
use crate::error::{ErrorKind, Result};
use crate::layout::for_each_range;
use crate::parallel;
use crate::storage::{ReadLock, resize_discarding};

/// Several threads gather a view that has more bytes than this. In-place operations use it as the size of a piece.
pub(super) const PIECE_BYTES: usize = 8 << 20;

/// The limit on buffers if several threads gather. Reading a file takes another 4 MiB per thread.
const BUFFERS_BYTES: usize = 64 << 20;

/// The smallest piece. Smaller pieces of a view in a file would need many reads.
pub(super) const MIN_PIECE_BYTES: usize = 4 << 20;

/// Pieces shrink to this size if memory is short. Even smaller ones would read the file of a transposed view hundreds
/// of times.
const LOW_MEMORY_PIECE_BYTES: usize = 1 << 20;

/// The limit on threads. More threads would produce data faster than the calling thread can write it.
const MAX_THREADS: usize = 4;

impl Source for Tensor {
    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn size(&self) -> Vec<usize> {
        self.size().to_vec()
    }

    fn lock_to_read(&self) -> Result<Option<ReadLock>> {
        Ok(self.steady()?.into_lock())
    }

    fn names(&self) -> Vec<Option<&str>> {
        if self.header().dim_names().is_some() { self.names() } else { Vec::new() }
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.numel() == 0 {
            return Ok(());
        }
        if let Some(bytes) = self.borrow_bytes()? {
            return sink(bytes);
        }
        gather_in_order(&*self.steady()?, sink)
    }
}

/// Returns a function that sorts the axes of a tensor by their descending stride in `view`, and flips axes whose stride
/// in `view` is negative. Pieces of the reordered view are then compact in the storage.
pub(super) fn order_axes_like(view: &Tensor) -> impl Fn(&Tensor) -> Result<Tensor> {
    let strides = view.stride();
    let mut axes: Vec<usize> = (0..view.ndim()).collect();
    axes.sort_by_key(|&axis| Reverse(strides[axis].unsigned_abs()));
    let backwards: Vec<usize> = (0..axes.len()).filter(|&at| strides[axes[at]] < 0).collect();
    move |tensor| tensor.permute(axes.iter().copied())?.flip(backwards.iter().copied())
}

/// Passes the bytes of all elements to `sink`, in row-major order, while other threads gather the following pieces.
fn gather_in_order(tensor: &Tensor, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let is_large = tensor.nbytes() > PIECE_BYTES;
    let thread_count = if is_large { parallel::thread_count(MAX_THREADS) } else { 1 };
    // For a tensor of medium size, choose pieces that keep all threads busy.
    let fair_bytes = tensor.nbytes() / (2 * thread_count);
    let limit_bytes = fair_bytes.clamp(MIN_PIECE_BYTES, BUFFERS_BYTES / (thread_count + 1));
    let limit = if is_large { limit_bytes / tensor.dtype().itemsize() } else { tensor.numel() };
    let spare = Mutex::<Vec<Vec<u8>>>::default();
    let lock_spare = || spare.lock().unwrap_or_else(PoisonError::into_inner);
    // Once memory is short, only the calling thread gathers.
    let is_short = AtomicBool::new(false);
    parallel::in_order(
        thread_count,
        |push| {
            for_each_piece(slice::from_ref(tensor), limit, &mut |pieces| {
                // Of a file that is far away, the next piece is fetched while this one is copied.
                pieces.iter().filter(|piece| piece.storage().reads_ahead()).for_each(Tensor::prefetch);
                pieces.iter().cloned().try_for_each(&mut *push)
            })
        },
        |piece| {
            if is_short.load(Ordering::Relaxed) {
                return (piece, Ok(None));
            }
            let mut buffer = lock_spare().pop().unwrap_or_default();
            match gather_into(&piece, &mut buffer) {
                Err(e) if e.kind() == ErrorKind::OutOfMemory => {
                    is_short.store(true, Ordering::Relaxed);
                    (piece, Ok(None))
                }
                gathered => (piece, gathered.map(|()| Some(buffer))),
            }
        },
        |(piece, gathered)| match gathered? {
            Some(buffer) => {
                sink(&buffer)?;
                lock_spare().push(buffer);
                Ok(())
            }
            None => {
                *lock_spare() = Vec::new();
                gather_in_small_pieces(&piece, sink)
            }
        },
    )
}

/// Gathers on this thread in halves, quarters and so on, because memory is short.
fn gather_in_small_pieces(tensor: &Tensor, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let limit = (tensor.nbytes() / 2).max(LOW_MEMORY_PIECE_BYTES) / tensor.dtype().itemsize();
    for_each_piece(slice::from_ref(tensor), limit, &mut |pieces| {
        pieces.iter().try_for_each(|piece| {
            let mut buffer = Vec::new();
            match gather_into(piece, &mut buffer) {
                Ok(()) => sink(&buffer),
                Err(e) if e.kind() == ErrorKind::OutOfMemory && piece.nbytes() > LOW_MEMORY_PIECE_BYTES => {
                    drop(buffer);
                    gather_in_small_pieces(piece, sink)
                }
                Err(e) => Err(e),
            }
        })
    })
}

pub(super) fn gather_into(tensor: &Tensor, buffer: &mut Vec<u8>) -> Result<()> {
    resize_discarding(buffer, tensor.nbytes())?;
    copy::gather(tensor, buffer)
}

impl Tensor {
    /// Returns the bytes of all elements if they are contiguous in memory.
    pub(super) fn borrow_bytes(&self) -> Result<Option<&[u8]>> {
        let bytes = if self.is_contiguous() { self.borrow_storage()? } else { None };
        let start = self.storage_offset() * self.dtype().itemsize();
        Ok(bytes.and_then(|bytes| bytes.get(start..start + self.nbytes())))
    }

    /// Returns the bytes of the storage if they are in memory. Those of the elements are verified, if the handle verifies
    /// what it reads.
    pub(super) fn borrow_storage(&self) -> Result<Option<&[u8]>> {
        let storage = self.storage();
        let Some(bytes) = storage.borrow() else { return Ok(None) };
        if storage.checks().is_some() {
            let mut checked = Ok(());
            // A gap that is shorter than a chunk contains none.
            let inside = for_each_range(self.header(), storage.length_bytes(), CHUNK_BYTES - 1, |range| {
                if checked.is_ok() {
                    checked = storage.check(range);
                }
            });
            debug_assert!(inside.is_ok(), "{self:?} leaves its storage");
            checked?;
        }
        Ok(Some(bytes))
    }
}

/// Divides views of one size into pieces of at most `limit` elements, in row-major order.
pub(super) fn for_each_piece(
    views: &[Tensor],
    limit: usize,
    body: &mut dyn FnMut(&[Tensor]) -> Result<()>,
) -> Result<()> {
    let numel = views.first().map_or(0, Tensor::numel);
    if numel <= limit.max(1) {
        return body(views);
    }
    // There is more than one element, so there is a dimension.
    let count = views.first().and_then(|view| view.size().first().copied()).unwrap_or(1);
    let row_elems = numel / count;
    let cut = |cut: &dyn Fn(&Tensor) -> Result<Tensor>| views.iter().map(cut).collect::<Result<Vec<_>>>();
    if row_elems > limit {
        for row in 0..count {
            for_each_piece(&cut(&|view| view.select(0, row))?, limit, body)?;
        }
    } else {
        let rows = limit / row_elems;
        for first in (0..count).step_by(rows) {
            body(&cut(&|view| view.narrow(0, first, rows.min(count - first)))?)?;
        }
    }
    Ok(())
}
