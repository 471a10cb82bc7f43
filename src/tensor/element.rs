//! Rust types for elements.

use half::{bf16, f16};
use num_complex::Complex;
use stridemap_format::DType;

use super::access::invalid_bools;
use super::small_float::{F8E4M3FN, F8E8M0FNU};
use crate::error::Result;
use crate::storage::zeroed;

/// A Rust type for the elements of a [`DType`].
///
/// Types that Rust lacks come from `half` (16-bit floats), `num-complex` (complex numbers) and
/// [`small_float`](crate::small_float). The other dtypes of 8 bits and below have none:
/// [`Tensor::to_dtype`](crate::Tensor::to_dtype) converts their elements, and
/// [`Tensor::to_bytes`](crate::Tensor::to_bytes) copies their codes.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The dtype of this type.
    const DTYPE: DType;
}

pub(crate) mod sealed {
    use bytemuck::{CheckedBitPattern, NoUninit, Zeroable};

    use crate::error::Result;
    use crate::storage::zeroed;

    /// Operations of the library on elements, hidden from users.
    pub trait Sealed: NoUninit + CheckedBitPattern + Zeroable {
        /// Returns the bytes of the elements.
        fn as_bytes(elements: &[Self]) -> &[u8] {
            bytemuck::cast_slice(elements)
        }

        /// Views bytes as elements. Returns `None` if they are not aligned, or not all are valid values.
        fn borrow(bytes: &[u8]) -> Option<&[Self]> {
            bytemuck::checked::try_cast_slice(bytes).ok()
        }

        /// The mutable form of `borrow`.
        fn borrow_mut(bytes: &mut [u8]) -> Option<&mut [Self]> {
            bytemuck::checked::try_cast_slice_mut(bytes).ok()
        }

        /// Returns a vector of zeros.
        fn zeros(count: usize) -> Result<Vec<Self>> {
            zeroed(count)
        }

        /// Lets `read` fill the bytes of `out`.
        fn fill(out: &mut [Self], read: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()>;
    }
}

macro_rules! elements {
    ($($type:ty = $dtype:ident),* $(,)?) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }

        impl sealed::Sealed for $type {
            fn fill(out: &mut [Self], read: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
                read(bytemuck::cast_slice_mut(out))
            }
        }
    )*};
}

elements! {
    u8 = U8, u16 = U16, u32 = U32, u64 = U64,
    i8 = I8, i16 = I16, i32 = I32, i64 = I64,
    f16 = F16, bf16 = BF16, f32 = F32, f64 = F64,
    Complex<f32> = C64, Complex<f64> = C128,
    F8E4M3FN = F8E4M3FN, F8E8M0FNU = F8E8M0FNU,
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
}

impl sealed::Sealed for bool {
    fn fill(out: &mut [Self], read: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
        let mut bytes = zeroed::<u8>(out.len())?;
        read(&mut bytes)?;
        let elements = bytemuck::checked::try_cast_slice(&bytes).map_err(|_| invalid_bools())?;
        out.copy_from_slice(elements);
        Ok(())
    }
}
