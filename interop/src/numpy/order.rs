use std::path::Path;

use stridemap::{Error, ErrorKind, Result, Tensor};

use super::dtype::Descr;

/// The order in which elements are written, by NumPy's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Row-major: the last index changes fastest.
    #[default]
    C,
    /// Column-major: the first index changes fastest. What lies so already is written as it lies.
    F,
}

/// An array to write: `elements`, in row-major order, are those of the tensor in the order that the header says.
pub(super) struct Arranged {
    pub(super) descr: String,
    pub(super) is_fortran_order: bool,
    pub(super) elements: Tensor,
}

/// `what` is said before the dtype that cannot be written.
pub(super) fn arranged(path: &Path, what: &str, tensor: &Tensor, order: Order) -> Result<Arranged> {
    let descr = Descr::of(tensor.dtype()).ok_or_else(|| {
        let message = format!(
            "export {}: {what}NumPy cannot hold {}, two elements to a byte; write a view of it as uint8",
            path.display(),
            tensor.dtype()
        );
        Error::new(ErrorKind::BadFile, message)
    })?;
    // With one dimension at most both orders are one, and NumPy calls that C.
    let is_fortran_order = order == Order::F && tensor.ndim() > 1;
    let axes: Vec<isize> = (0..tensor.ndim() as isize).rev().collect();
    let elements = if is_fortran_order { tensor.permute(&axes)? } else { tensor.clone() };
    Ok(Arranged { descr, is_fortran_order, elements })
}
