//! Single elements of any dtype.

use half::{bf16, f16};
use num_complex::Complex;
use stridemap_format::DType;

use super::cast::{convert, widen};
use super::small_float::{E2M1, E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ};
use super::{Element, Tensor, print};
use crate::available_memory::out_of_memory;
use crate::error::{Error, ErrorKind, Result};

/// One element of any dtype, widened without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scalar {
    /// A bool.
    Bool(bool),
    /// An integer of any width and sign.
    Int(i128),
    /// A real number of any width.
    Float(f64),
    /// A complex number: real, imaginary.
    Complex(f64, f64),
    /// The two numbers in one byte of `float4_e2m1fn_x2`: low half, high half.
    Pair(f64, f64),
}

impl Tensor {
    /// Copies all elements, widened, in row-major order. This works for every dtype, and is meant for printing rather
    /// than for speed.
    ///
    /// ```
    /// # use stridemap::{Scalar, Tensor};
    /// let x = Tensor::from_vec(vec![1u8, 255], &[2])?;
    /// assert_eq!(x.to_scalars()?, [Scalar::Int(1), Scalar::Int(255)]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::OutOfMemory`] if there is not enough memory.
    pub fn to_scalars(&self) -> Result<Vec<Scalar>> {
        let bytes = self.to_bytes()?;
        let dtype = self.dtype();
        let mut scalars = Vec::new();
        // Scalars are larger than elements, so there may be memory for the bytes but not for the scalars.
        scalars
            .try_reserve_exact(self.numel())
            .map_err(|_| out_of_memory(self.numel().saturating_mul(size_of::<Scalar>())))?;
        for bytes in bytes.chunks(WIDENED_ELEMS * dtype.itemsize()) {
            match dtype {
                DType::Bool => scalars.extend(bytes.iter().map(|&byte| Scalar::Bool(byte != 0))),
                DType::F4E2M1FNx2 => scalars.extend(bytes.iter().map(|&byte| {
                    let [low, high] = [byte & 0xf, byte >> 4].map(|code| E2M1.decode(code.into()).into());
                    Scalar::Pair(low, high)
                })),
                DType::U64 => extend_widened::<u64>(dtype, bytes, &mut scalars)?,
                dtype if dtype.is_complex() => extend_widened::<Complex<f64>>(dtype, bytes, &mut scalars)?,
                dtype if dtype.is_floating_point() => extend_widened::<f64>(dtype, bytes, &mut scalars)?,
                dtype => extend_widened::<i64>(dtype, bytes, &mut scalars)?,
            }
        }
        Ok(scalars)
    }
}

/// The number of elements that are widened at a time.
const WIDENED_ELEMS: usize = 4096;

fn extend_widened<T: Element + Into<Scalar>>(
    dtype: DType,
    bytes: &[u8],
    out: &mut Vec<Scalar>,
) -> Result<()> {
    let mut wide = Vec::<T>::new();
    widen(dtype, bytes, &mut wide)?;
    out.extend(wide.into_iter().map(T::into));
    Ok(())
}

impl Scalar {
    /// Encodes the value as PyTorch's `fill_` does: the first bytes are one little-endian element of `dtype`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if the dtype cannot hold the value; those of [`cast`](Self::cast).
    pub(super) fn encode(self, dtype: DType) -> Result<[u8; 16]> {
        if !self.fits(dtype) {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("value {} does not fit {dtype}", print::plain_text(self)),
            ));
        }
        self.cast(dtype)
    }

    /// The same as [`encode`](Self::encode), but values that do not fit are converted by the rules of
    /// [`Tensor::to_dtype`](super::Tensor::to_dtype).
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] between `float4_e2m1fn_x2` and a value that is not a pair.
    pub(super) fn cast(self, dtype: DType) -> Result<[u8; 16]> {
        let mut element = [0; 16];
        let out = element.split_at_mut(dtype.itemsize()).0;
        match self {
            Scalar::Bool(b) => convert(DType::Bool, &[b.into()], dtype, out)?,
            Scalar::Int(n) => match (i64::try_from(n), u64::try_from(n)) {
                (Ok(n), _) => convert(DType::I64, &n.to_le_bytes(), dtype, out)?,
                (_, Ok(n)) => convert(DType::U64, &n.to_le_bytes(), dtype, out)?,
                _ => convert(DType::F64, &(n as f64).to_le_bytes(), dtype, out)?,
            },
            Scalar::Float(x) => convert(DType::F64, &x.to_le_bytes(), dtype, out)?,
            Scalar::Complex(re, im) => {
                convert(DType::C128, &[re.to_le_bytes(), im.to_le_bytes()].concat(), dtype, out)?;
            }
            Scalar::Pair(low, high) => {
                let byte = E2M1.encode(low as f32) | E2M1.encode(high as f32) << 4;
                convert(DType::F4E2M1FNx2, &[byte as u8], dtype, out)?;
            }
        }
        Ok(element)
    }

    fn fits(self, dtype: DType) -> bool {
        match (self, integer_range(dtype)) {
            // PyTorch accepts negative numbers for unsigned dtypes: -1 becomes the highest number.
            (Scalar::Int(n), Some((0, max))) => n.unsigned_abs() <= max.unsigned_abs(),
            (Scalar::Int(n), Some((min, max))) => (min..=max).contains(&n),
            // The fraction is dropped. NaN fails both comparisons.
            (Scalar::Float(x), Some((min, max))) => x >= min as f64 && x < (max + 1) as f64,
            (Scalar::Int(n), None) => (n.unsigned_abs() as f64) <= largest(dtype),
            (Scalar::Float(x), None) => !x.is_finite() || x.abs() <= largest(dtype),
            (Scalar::Complex(re, im), _) if dtype.is_complex() => {
                Scalar::Float(re).fits(dtype) && Scalar::Float(im).fits(dtype)
            }
            (Scalar::Complex(re, im), _) => dtype == DType::Bool || im == 0. && Scalar::Float(re).fits(dtype),
            (Scalar::Pair(low, high), _) => !low.is_nan() && !high.is_nan(),
            _ => true,
        }
    }
}

/// Returns the lowest and the highest number of an integer dtype.
fn integer_range(dtype: DType) -> Option<(i128, i128)> {
    Some(match dtype {
        DType::U8 => (0, u8::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::U64 => (0, u64::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I64 => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    })
}

/// Returns the largest finite number of a dtype that is not an integer.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::MAX.into(),
        DType::BF16 => bf16::MAX.into(),
        DType::F32 | DType::C64 => f32::MAX.into(),
        DType::F8E4M3FN => E4M3FN.largest(),
        DType::F8E5M2 => E5M2.largest(),
        DType::F8E4M3FNUZ => E4M3FNUZ.largest(),
        DType::F8E5M2FNUZ => E5M2FNUZ.largest(),
        DType::F8E8M0FNU => 2f64.powi(127),
        // Any value converts to a bool, and the parts of a packed pair are not checked here.
        _ => f64::MAX,
    }
}

macro_rules! scalar_from {
    ($($variant:ident: $($type:ty),*;)*) => {$($(
        impl From<$type> for Scalar {
            fn from(value: $type) -> Scalar {
                Scalar::$variant(value.into())
            }
        }
    )*)*};
}

scalar_from! {
    Bool: bool;
    Int: i8, i16, i32, i64, u8, u16, u32, u64;
    Float: f16, bf16, f32, f64;
}

impl<T: Into<f64>> From<Complex<T>> for Scalar {
    fn from(value: Complex<T>) -> Scalar {
        Scalar::Complex(value.re.into(), value.im.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar_of(dtype: DType, code: u8) -> Scalar {
        Tensor::from_bytes(dtype, &[1], &[code]).unwrap().to_scalars().unwrap()[0]
    }

    #[test]
    fn small_floats_have_the_values_of_their_standards() {
        for (dtype, code, value) in [
            (DType::F8E4M3FN, 0x7e, 448.),
            (DType::F8E4M3FN, 0x01, 2f64.powi(-9)),
            (DType::F8E4M3FN, 0xb8, -1.),
            (DType::F8E5M2, 0x7b, 57344.),
            (DType::F8E5M2, 0x7c, f64::INFINITY),
            (DType::F8E4M3FNUZ, 0x7f, 240.),
            (DType::F8E5M2FNUZ, 0x7f, 57344.),
            (DType::F8E8M0FNU, 0x80, 2.),
        ] {
            assert_eq!(scalar_of(dtype, code), Scalar::Float(value), "{dtype} {code:#x}");
        }
        assert_eq!(scalar_of(DType::F4E2M1FNx2, 0x7f), Scalar::Pair(-6., 6.));
        for (dtype, code) in [
            (DType::F8E4M3FN, 0xff),
            (DType::F8E5M2, 0x7d),
            (DType::F8E4M3FNUZ, 0x80),
            (DType::F8E8M0FNU, 0xff),
        ] {
            assert!(
                matches!(scalar_of(dtype, code), Scalar::Float(value) if value.is_nan()),
                "{dtype} {code:#x}"
            );
        }
    }

    #[test]
    fn encode_matches_fill() {
        let encode = |value: Scalar, dtype: DType| value.encode(dtype).unwrap()[..dtype.itemsize()].to_vec();
        for (value, dtype, bytes) in [
            (Scalar::from(255), DType::U8, vec![255]),
            (Scalar::from(-1), DType::U16, vec![255, 255]),
            (Scalar::from(255.9), DType::U8, vec![255]),
            (Scalar::from(127.5), DType::I8, vec![127]),
            (Scalar::from(2f64.powi(63)), DType::U64, (1u64 << 63).to_le_bytes().to_vec()),
            (Scalar::from(1i64 << 40), DType::Bool, vec![1]),
            (Scalar::from(f64::NAN), DType::Bool, vec![1]),
            (Scalar::from(true), DType::F32, 1f32.to_le_bytes().to_vec()),
            (Scalar::from(65_504), DType::F16, f16::MAX.to_le_bytes().to_vec()),
            (Scalar::from(f64::INFINITY), DType::F8E4M3FN, vec![0x7e]),
            (Scalar::from(u64::MAX), DType::F64, 2f64.powi(64).to_le_bytes().to_vec()),
            (Scalar::from(Complex::new(2.5, 0.)), DType::I32, 2i32.to_le_bytes().to_vec()),
            (Scalar::from(Complex::new(0., 2.)), DType::Bool, vec![1]),
            (Scalar::from(Complex::new(0f32, 2.)), DType::C64, [[0; 4], 2f32.to_le_bytes()].concat()),
            (Scalar::Int(1 << 70), DType::F64, 2f64.powi(70).to_le_bytes().to_vec()),
            (Scalar::Pair(-6., 0.5), DType::F4E2M1FNx2, vec![0x1f]),
        ] {
            assert_eq!(encode(value, dtype), bytes, "{value:?} as {dtype}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused() {
        for (value, dtype, kind) in [
            (Scalar::from(300), DType::U8, ErrorKind::OutOfRange),
            (Scalar::from(-256), DType::U8, ErrorKind::OutOfRange),
            (Scalar::from(128), DType::I8, ErrorKind::OutOfRange),
            (Scalar::from(-0.5), DType::U8, ErrorKind::OutOfRange),
            (Scalar::from(-128.5), DType::I8, ErrorKind::OutOfRange),
            (Scalar::from(2f64.powi(63)), DType::I64, ErrorKind::OutOfRange),
            (Scalar::from(f64::NAN), DType::I32, ErrorKind::OutOfRange),
            (Scalar::from(1e39), DType::F32, ErrorKind::OutOfRange),
            (Scalar::from(65_505), DType::F16, ErrorKind::OutOfRange),
            (Scalar::from(3.4e38), DType::BF16, ErrorKind::OutOfRange),
            (Scalar::from(449.), DType::F8E4M3FN, ErrorKind::OutOfRange),
            (Scalar::from(Complex::new(0., 1e39)), DType::C64, ErrorKind::OutOfRange),
            (Scalar::from(Complex::new(1., 2.)), DType::F32, ErrorKind::OutOfRange),
            (Scalar::from(1.), DType::F4E2M1FNx2, ErrorKind::DTypeMismatch),
            (Scalar::Pair(1., 1.), DType::U8, ErrorKind::DTypeMismatch),
        ] {
            assert_eq!(value.encode(dtype).unwrap_err().kind(), kind, "{value:?} as {dtype}");
        }
        let refusal = Scalar::from(300).encode(DType::U8).unwrap_err();
        assert_eq!(refusal.to_string(), "value 300 does not fit uint8");
    }
}
