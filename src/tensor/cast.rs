//! Conversion between dtypes, with PyTorch's rounding.
//!
//! Elements are widened without loss to one of four types and then narrowed to the target dtype. This happens one run
//! at a time, in loops that the compiler vectorizes.

use half::bf16;
use stridemap_format::DType;

use super::small_float::{E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, F16, decode_e8m0, encode_e8m0};
use super::{Element, Source, Tensor};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::row_major;

/// The number of elements widened at a time. They fit in the first-level cache.
const RUN: usize = 512;

impl Tensor {
    /// Converts the elements to a different dtype, in row-major order on the heap. Returns the same tensor if it
    /// already has that dtype.
    ///
    /// The result is the same as that of PyTorch's `to`, bit for bit:
    /// - To floats: values round to nearest, ties to even. `float64` is converted by way of `float32` if the dtype is
    ///   narrower than that. Values that are too large become the largest number in `float8_e4m3fn`, and infinity or
    ///   NaN in other floats.
    /// - Integers to integers: values wrap.
    /// - Floats to integers: the fraction is dropped. A float is first converted to an intermediate type, whose
    ///   value then wraps. The intermediate type is `int64` for `uint32`, for negative floats to `uint64`, and for
    ///   `float64` to `uint8`. It is `int32` for the other integers of 8 and 16 bits. If a value does not fit in the
    ///   intermediate type, the result is undefined in C. Here the nearest value that fits is used, and 0 for NaN.
    /// - To bool: all values except zero become true.
    /// - Complex numbers to real dtypes except bool: the imaginary part is dropped.
    ///
    /// Besides the result, the conversion takes up to 64 MiB of buffers if the elements are not contiguous in memory,
    /// and 4 MiB per thread that reads a file.
    ///
    /// ```
    /// use stridemap::{DType, Tensor};
    ///
    /// let wide = Tensor::from_vec(vec![1.5f32, -2.75, 1e6], &[3])?;
    /// assert_eq!(wide.to_dtype(DType::I32)?.read::<i32>()?, [1, -2, 1_000_000]);
    /// assert_eq!(wide.to_dtype(DType::F16)?.to_string(), "tensor([ 1.5000, -2.7500,     inf], dtype=float16)");
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] between `float4_e2m1fn_x2`, whose bytes hold two numbers each, and a different
    /// dtype; [`ErrorKind::OutOfMemory`] if there is not enough memory; [`ErrorKind::Io`].
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        // Converting no elements checks that the conversion exists, before memory is allocated.
        convert(self.dtype(), &[], dtype, &mut [])?;
        Tensor::filled(row_major(self.header(), dtype, self.size())?, |mut rest| {
            self.write_to(&mut |piece| {
                let length_bytes = piece.len() / self.dtype().itemsize() * dtype.itemsize();
                let (out, after) = std::mem::take(&mut rest).split_at_mut(length_bytes);
                rest = after;
                convert(self.dtype(), piece, dtype, out)
            })
        })
    }
}

/// Converts little-endian elements. `dst` must hold as many elements of `to` as `src` holds of `from`.
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`]. Nothing is written then.
pub(super) fn convert(from: DType, src: &[u8], to: DType, dst: &mut [u8]) -> Result<()> {
    debug_assert_eq!(src.len() / from.itemsize(), dst.len() / to.itemsize());
    if from == to {
        dst.copy_from_slice(src);
        return Ok(());
    }
    if from == DType::F4E2M1FNx2 || to == DType::F4E2M1FNx2 {
        return Err(Error::new(
            ErrorKind::DTypeMismatch,
            format!(
                "{from} to {to}: a byte of float4_e2m1fn_x2 is two numbers; read its bytes and convert those"
            ),
        ));
    }
    if let (Some(from_part), Some(to_part)) = (part(from), part(to)) {
        return convert(from_part, src, to_part, dst);
    }
    match from {
        DType::Bool => convert_through(src, to, dst, |[byte]| i64::from(byte != 0)),
        DType::U8 => convert_through(src, to, dst, |[byte]| i64::from(byte)),
        DType::U16 => convert_through(src, to, dst, |bytes| i64::from(u16::from_le_bytes(bytes))),
        DType::U32 => convert_through(src, to, dst, |bytes| i64::from(u32::from_le_bytes(bytes))),
        DType::U64 => convert_through(src, to, dst, u64::from_le_bytes),
        DType::I8 => convert_through(src, to, dst, |bytes| i64::from(i8::from_le_bytes(bytes))),
        DType::I16 => convert_through(src, to, dst, |bytes| i64::from(i16::from_le_bytes(bytes))),
        DType::I32 => convert_through(src, to, dst, |bytes| i64::from(i32::from_le_bytes(bytes))),
        DType::I64 => convert_through(src, to, dst, i64::from_le_bytes),
        DType::F16 => convert_through(src, to, dst, |bytes| F16.decode(u16::from_le_bytes(bytes).into())),
        DType::BF16 => {
            convert_through(src, to, dst, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16))
        }
        DType::F32 => convert_through(src, to, dst, f32::from_le_bytes),
        DType::F64 => convert_through(src, to, dst, f64::from_le_bytes),
        DType::C64 => convert_through(src, to, dst, |bytes| {
            let both = u64::from_le_bytes(bytes);
            let (re, im) = (f32::from_bits(both as u32), f32::from_bits((both >> 32) as u32));
            if to == DType::Bool && re == 0. { im } else { re }
        }),
        DType::C128 => convert_through(src, to, dst, |bytes| {
            let both = u128::from_le_bytes(bytes);
            let (re, im) = (f64::from_bits(both as u64), f64::from_bits((both >> 64) as u64));
            if to == DType::Bool && re == 0. { im } else { re }
        }),
        DType::F8E4M3FN => convert_by_table(&const { E4M3FN.table() }, src, to, dst),
        DType::F8E5M2 => convert_by_table(&const { E5M2.table() }, src, to, dst),
        DType::F8E4M3FNUZ => convert_by_table(&const { E4M3FNUZ.table() }, src, to, dst),
        DType::F8E5M2FNUZ => convert_by_table(&const { E5M2FNUZ.table() }, src, to, dst),
        _ => convert_through(src, to, dst, |[code]| decode_e8m0(code)),
    }
    Ok(())
}

/// Converts elements to the dtype of `T`, and replaces the contents of `out` by them.
pub(super) fn widen<T: Element>(dtype: DType, bytes: &[u8], out: &mut Vec<T>) -> Result<()> {
    out.resize(bytes.len() / dtype.itemsize(), T::default());
    T::fill(out, &mut |wide| convert(dtype, bytes, T::DTYPE, wide))
}

/// Returns the dtype of each half of a complex number.
fn part(dtype: DType) -> Option<DType> {
    match dtype {
        DType::C64 => Some(DType::F32),
        DType::C128 => Some(DType::F64),
        _ => None,
    }
}

/// One of the four types to which elements of real dtypes are widened, and from which they are narrowed.
trait Wide: Copy + Default {
    fn is_zero(self) -> bool;
    fn to_u8(self) -> u8;
    fn to_i32(self) -> i32;
    fn to_i64(self) -> i64;
    fn to_u64(self) -> u64;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
}

macro_rules! wide {
    ($($type:ty, u8 from $step:ty;)*) => {$(
        impl Wide for $type {
            fn is_zero(self) -> bool {
                self == 0 as $type
            }

            fn to_u8(self) -> u8 {
                self as $step as u8
            }

            fn to_i32(self) -> i32 {
                self as i32
            }

            fn to_i64(self) -> i64 {
                self as i64
            }

            fn to_u64(self) -> u64 {
                // A negative float wraps in the first cast and is 0 in the second. A large float saturates in the
                // first and is higher in the second.
                (self as i64 as u64).max(self as u64)
            }

            fn to_f32(self) -> f32 {
                self as f32
            }

            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    )*};
}

wide! { i64, u8 from i32; u64, u8 from i32; f32, u8 from i32; f64, u8 from i64; }

/// Widens elements by `element`, and narrows them to `to`.
fn convert_through<W: Wide, const N: usize>(
    src: &[u8],
    to: DType,
    dst: &mut [u8],
    element: impl Fn([u8; N]) -> W,
) {
    let mut wide = [W::default(); RUN];
    let runs = src.as_chunks::<N>().0.chunks(RUN);
    for (run, out) in runs.zip(dst.chunks_mut(RUN * to.itemsize())) {
        for (wide, &bytes) in wide.iter_mut().zip(run) {
            *wide = element(bytes);
        }
        narrow(wide.split_at(run.len()).0, to, out);
    }
}

fn convert_by_table(table: &[f32; 256], src: &[u8], to: DType, dst: &mut [u8]) {
    convert_through(src, to, dst, |[code]| table[usize::from(code)]);
}

fn narrow<W: Wide>(wide: &[W], to: DType, out: &mut [u8]) {
    match to {
        DType::Bool => put(wide, out, |x| [u8::from(!x.is_zero())]),
        DType::U8 => put(wide, out, |x| [x.to_u8()]),
        DType::I8 => put(wide, out, |x| (x.to_i32() as u8).to_le_bytes()),
        DType::U16 | DType::I16 => put(wide, out, |x| (x.to_i32() as u16).to_le_bytes()),
        DType::U32 => put(wide, out, |x| (x.to_i64() as u32).to_le_bytes()),
        DType::U64 => put(wide, out, |x| x.to_u64().to_le_bytes()),
        DType::I32 => put(wide, out, |x| x.to_i32().to_le_bytes()),
        DType::I64 => put(wide, out, |x| x.to_i64().to_le_bytes()),
        DType::F16 => put(wide, out, |x| (F16.encode(x.to_f32()) as u16).to_le_bytes()),
        DType::BF16 => put(wide, out, |x| bf16::from_f32(x.to_f32()).to_le_bytes()),
        DType::F32 => put(wide, out, |x| x.to_f32().to_le_bytes()),
        DType::F64 => put(wide, out, |x| x.to_f64().to_le_bytes()),
        // The upper half is the imaginary part, 0.
        DType::C64 => put(wide, out, |x| u64::from(x.to_f32().to_bits()).to_le_bytes()),
        DType::C128 => put(wide, out, |x| u128::from(x.to_f64().to_bits()).to_le_bytes()),
        DType::F8E4M3FN => put(wide, out, |x| [E4M3FN.encode(x.to_f32()) as u8]),
        DType::F8E5M2 => put(wide, out, |x| [E5M2.encode(x.to_f32()) as u8]),
        DType::F8E4M3FNUZ => put(wide, out, |x| [E4M3FNUZ.encode(x.to_f32()) as u8]),
        DType::F8E5M2FNUZ => put(wide, out, |x| [E5M2FNUZ.encode(x.to_f32()) as u8]),
        _ => put(wide, out, |x| [encode_e8m0(x.to_f32())]),
    }
}

fn put<W: Wide, const N: usize>(wide: &[W], out: &mut [u8], element: impl Fn(W) -> [u8; N]) {
    for (bytes, &x) in out.as_chunks_mut::<N>().0.iter_mut().zip(wide) {
        *bytes = element(x);
    }
}
