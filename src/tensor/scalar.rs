use half::{bf16, f16};
use stridemap_format::DType;

use super::Tensor;
use super::small_float::{E2M1, E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, decode_e8m0};
use crate::error::Result;
use crate::storage::out_of_memory;

/// One element of any dtype, widened to where it fits exactly.
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
    /// The two numbers of one byte of `float4_e2m1fn_x2`: low half, high half.
    Pair(f64, f64),
}

impl Tensor {
    /// Copies all elements, in row-major order, widened. Works for every dtype; for printing rather than for speed.
    ///
    /// # Errors
    /// Those of [`to_bytes`](Tensor::to_bytes).
    pub fn to_scalars(&self) -> Result<Vec<Scalar>> {
        let bytes = self.to_bytes()?;
        let mut scalars = Vec::new();
        // A scalar is larger than its element: there may be memory for all bytes and not for these.
        scalars
            .try_reserve_exact(self.numel())
            .map_err(|_| out_of_memory(self.numel().saturating_mul(size_of::<Scalar>())))?;
        let elements = bytes.chunks_exact(self.dtype().itemsize());
        scalars.extend(elements.map(|element| Scalar::of(self.dtype(), element)));
        Ok(scalars)
    }
}

impl Scalar {
    /// `bytes` is one element, little-endian.
    fn of(dtype: DType, bytes: &[u8]) -> Scalar {
        let raw = |from: usize, to: usize| {
            bytes.iter().take(to).skip(from).rev().fold(0u64, |high, &byte| high << 8 | u64::from(byte))
        };
        let all = raw(0, 8);
        match dtype {
            DType::Bool => Scalar::Bool(all != 0),
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Scalar::Int(all.into()),
            DType::I8 => Scalar::Int((all as i8).into()),
            DType::I16 => Scalar::Int((all as i16).into()),
            DType::I32 => Scalar::Int((all as i32).into()),
            DType::I64 => Scalar::Int((all as i64).into()),
            DType::F16 => Scalar::Float(f16::from_bits(all as u16).to_f64()),
            DType::BF16 => Scalar::Float(bf16::from_bits(all as u16).to_f64()),
            DType::F32 => Scalar::Float(f32::from_bits(all as u32).into()),
            DType::F64 => Scalar::Float(f64::from_bits(all)),
            DType::C64 => {
                let part = |from, to| f32::from_bits(raw(from, to) as u32).into();
                Scalar::Complex(part(0, 4), part(4, 8))
            }
            DType::C128 => Scalar::Complex(f64::from_bits(all), f64::from_bits(raw(8, 16))),
            DType::F8E4M3FN => Scalar::Float(E4M3FN.decode(all as u32).into()),
            DType::F8E5M2 => Scalar::Float(E5M2.decode(all as u32).into()),
            DType::F8E4M3FNUZ => Scalar::Float(E4M3FNUZ.decode(all as u32).into()),
            DType::F8E5M2FNUZ => Scalar::Float(E5M2FNUZ.decode(all as u32).into()),
            DType::F8E8M0FNU => Scalar::Float(decode_e8m0(all as u8).into()),
            _ => Scalar::Pair(E2M1.decode(all as u32 & 0xf).into(), E2M1.decode(all as u32 >> 4).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(Scalar::of(dtype, &[code]), Scalar::Float(value), "{dtype} {code:#x}");
        }
        assert_eq!(Scalar::of(DType::F4E2M1FNx2, &[0x7f]), Scalar::Pair(-6., 6.));
        for (dtype, code) in [
            (DType::F8E4M3FN, 0xff),
            (DType::F8E5M2, 0x7d),
            (DType::F8E4M3FNUZ, 0x80),
            (DType::F8E8M0FNU, 0xff),
        ] {
            assert!(
                matches!(Scalar::of(dtype, &[code]), Scalar::Float(value) if value.is_nan()),
                "{dtype} {code:#x}"
            );
        }
    }
}
