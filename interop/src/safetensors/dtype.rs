//! The element types of safetensors headers.

use safetensors::tensor::Dtype;
use stridemap::{DType, Tensor};

const DTYPES: [(Dtype, DType); 20] = [
    (Dtype::BOOL, DType::Bool),
    (Dtype::F4, DType::F4E2M1FNx2),
    (Dtype::U8, DType::U8),
    (Dtype::I8, DType::I8),
    (Dtype::F8_E5M2, DType::F8E5M2),
    (Dtype::F8_E4M3, DType::F8E4M3FN),
    (Dtype::F8_E8M0, DType::F8E8M0FNU),
    (Dtype::F8_E4M3FNUZ, DType::F8E4M3FNUZ),
    (Dtype::F8_E5M2FNUZ, DType::F8E5M2FNUZ),
    (Dtype::I16, DType::I16),
    (Dtype::U16, DType::U16),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::I32, DType::I32),
    (Dtype::U32, DType::U32),
    (Dtype::F32, DType::F32),
    (Dtype::C64, DType::C64),
    (Dtype::F64, DType::F64),
    (Dtype::I64, DType::I64),
    (Dtype::U64, DType::U64),
];

/// Returns the dtype and size of a tensor. `None` for a type that stridemap does not have, and for 4-bit elements that
/// do not fill whole bytes along the last axis.
pub(super) fn dtype_and_size(dtype: Dtype, shape: &[usize]) -> Option<(DType, Vec<usize>)> {
    let &(_, dtype) = DTYPES.iter().find(|&&(theirs, _)| theirs == dtype)?;
    let mut size = shape.to_vec();
    if dtype == DType::F4E2M1FNx2 {
        let last = size.last_mut().filter(|n| n.is_multiple_of(2))?;
        *last /= 2;
    }
    Some((dtype, size))
}

/// The inverse of [`dtype_and_size`].
pub(super) fn shape_of(tensor: &Tensor) -> Option<(Dtype, Vec<usize>)> {
    let &(dtype, _) = DTYPES.iter().find(|&&(_, ours)| ours == tensor.dtype())?;
    let mut shape = tensor.size().to_vec();
    if dtype == Dtype::F4 {
        let last = shape.last_mut()?;
        *last = last.checked_mul(2)?;
    }
    Some((dtype, shape))
}
