use stridemap_format::DType;

use super::{Tensor, copy, lanes};
use crate::error::Result;

/// How many bytes of a view are gathered at a time.
pub(super) const PIECE_BYTES: usize = 8 << 20;

/// What can be saved: a tensor on whatever storage, or an array of `ndarray`.
///
/// Its elements are taken in row-major order, a piece at a time, straight into the new storage.
pub trait Source {
    /// The type of the elements.
    fn dtype(&self) -> DType;

    /// The size of each dimension.
    fn size(&self) -> Vec<usize>;

    /// The name of each dimension, if it has one; an empty list for no names at all.
    fn names(&self) -> Vec<Option<&str>> {
        Vec::new()
    }

    /// Gives the bytes of all elements, little-endian and in row-major order, to `sink`, in pieces of any length.
    ///
    /// # Errors
    /// Those of reading the elements, and the sink's own.
    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

impl Source for Tensor {
    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn size(&self) -> Vec<usize> {
        self.size().to_vec()
    }

    fn names(&self) -> Vec<Option<&str>> {
        if self.layout().has_names() { self.names() } else { Vec::new() }
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.numel() == 0 {
            return Ok(());
        }
        if let Some(bytes) = self.borrow_bytes() {
            return sink(bytes);
        }
        if self.nbytes() > PIECE_BYTES {
            return lanes::gather_in_order(self, sink);
        }
        let mut buffer = vec![0; self.nbytes()];
        copy::gather(self, &mut buffer)?;
        sink(&buffer)
    }
}

impl Tensor {
    /// The bytes of all elements, where they lie together in memory.
    pub(super) fn borrow_bytes(&self) -> Option<&[u8]> {
        let bytes = self.storage().borrow().filter(|_| self.is_contiguous())?;
        let start = self.storage_offset() * self.dtype().itemsize();
        bytes.get(start..start + self.nbytes())
    }
}

/// Cuts views of one size into pieces of at most `limit` elements, in row-major order.
pub(super) fn for_each_piece(
    views: &[Tensor],
    limit: usize,
    body: &mut dyn FnMut(&[Tensor]) -> Result<()>,
) -> Result<()> {
    let numel = views.first().map_or(0, Tensor::numel);
    if numel <= limit.max(1) {
        return body(views);
    }
    // Of more than one element, so it has a dimension.
    let count = views.first().and_then(|view| view.size().first().copied()).unwrap_or(1);
    let row_elems = numel / count;
    let cut = |cut: &dyn Fn(&Tensor) -> Result<Tensor>| views.iter().map(cut).collect::<Result<Vec<_>>>();
    if row_elems > limit {
        for row in 0..count {
            for_each_piece(&cut(&|view| view.select(0, row as isize))?, limit, body)?;
        }
    } else {
        let rows = limit / row_elems;
        for first in (0..count).step_by(rows) {
            body(&cut(&|view| view.narrow(0, first as isize, rows.min(count - first)))?)?;
        }
    }
    Ok(())
}
