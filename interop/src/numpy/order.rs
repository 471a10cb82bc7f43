use std::path::Path;

use stridemap::{Error, ErrorKind, Result, Tensor};

use super::dtype::Descr;

/// The order in which elements are written, with NumPy's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Row-major: the last index changes fastest.
    #[default]
    C,
    /// Column-major: the first index changes fastest. A tensor in this order in memory is written without reordering.
    F,
}

/// An array to write. `elements`, in row-major order, are the tensor's elements in the order that the header states.
pub(super) struct Arranged {
    pub(super) descr: String,
    pub(super) is_fortran_order: bool,
    pub(super) elements: Tensor,
}

/// Arranges a tensor for writing. An error puts `what` before the dtype that cannot be written.
pub(super) fn arranged(path: &Path, what: &str, tensor: &Tensor, order: Order) -> Result<Arranged> {
    let descr = Descr::of(tensor.dtype()).ok_or_else(|| {
        let message = format!(
            "export {}: {what}NumPy cannot hold {}, which packs two elements into a byte; write a view of it as uint8",
            path.display(),
            tensor.dtype()
        );
        Error::new(ErrorKind::BadFile, message)
    })?;
    // With at most one dimension both orders are the same, and NumPy calls them C.
    let is_fortran_order = order == Order::F && tensor.ndim() > 1;
    let axes: Vec<isize> = (0..tensor.ndim() as isize).rev().collect();
    let elements = if is_fortran_order { tensor.permute(&axes)? } else { tensor.clone() };
    Ok(Arranged { descr, is_fortran_order, elements })
}
