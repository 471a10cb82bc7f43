//! Element types of 8 and 4 bits, which Rust does not have.
//!
//! A value of one of these types holds the bits that encode a number. It converts from and to `f32`, and compares and
//! displays as that number. Tensors of these types are saved, read and cast like all others. [`half`] has the 16-bit
//! types.
//!
//! ```
//! use stridemap::small_float::F8E4M3FN;
//! use stridemap::{DType, Tensor};
//!
//! let x = Tensor::from_vec(vec![0.3f32, 1000.], &[2])?.to_dtype(DType::F8E4M3FN)?;
//! assert_eq!(x.read::<F8E4M3FN>()?, [0.3125, 448.].map(F8E4M3FN::from_f32));
//! # Ok::<(), stridemap::Error>(())
//! ```

pub use crate::tensor::{F4E2M1FNx2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU};
