use stridemap_format::DType;

use super::{Tensor, gather};
use crate::error::Result;

/// How many bytes of a view are gathered at a time.
const PIECE_BYTES: usize = 8 << 20;

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
        if self.is_contiguous()
            && let Some(bytes) = self.storage().borrow()
        {
            let start = self.storage_offset() * self.dtype().itemsize();
            return sink(bytes.get(start..start + self.nbytes()).unwrap_or_default());
        }
        write_pieces(self, &mut Vec::new(), sink)
    }
}

fn write_pieces(view: &Tensor, piece: &mut Vec<u8>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    if view.nbytes() <= PIECE_BYTES {
        piece.resize(view.nbytes(), 0);
        gather::gather(view, piece)?;
        return sink(piece);
    }
    // Larger than a piece, so it has a dimension.
    let count = view.size().first().copied().unwrap_or(1);
    let row_bytes = view.nbytes() / count;
    if row_bytes > PIECE_BYTES {
        for row in 0..count {
            write_pieces(&view.select(0, row as isize)?, piece, sink)?;
        }
    } else {
        let rows = PIECE_BYTES / row_bytes;
        for first in (0..count).step_by(rows) {
            write_pieces(&view.narrow(0, first as isize, rows.min(count - first))?, piece, sink)?;
        }
    }
    Ok(())
}
