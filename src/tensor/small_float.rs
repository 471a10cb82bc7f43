//! Floats below 32 bits: formats shared by scalars and conversions, and types for two of those of 8 bits.

use std::cmp::Ordering;
use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::Scalar;

/// The format of a small float: a sign, then exponent and mantissa bits, in the low bits of a `u32`.
pub(super) struct SmallFloat {
    mantissa_bits: u32,
    sign_bit: u32,
    bias: u32,
    /// The code of the largest number.
    highest: u32,
    /// The code to which PyTorch converts larger numbers: infinity, NaN, or the largest number.
    overflow: u32,
    nan: u32,
}

pub(super) const F16: SmallFloat = SmallFloat::new(10, 0x8000, 15, 0x7bff, 0x7c00, 0x7e00);
pub(super) const E4M3FN: SmallFloat = SmallFloat::new(3, 0x80, 7, 0x7e, 0x7e, 0x7f);
pub(super) const E5M2: SmallFloat = SmallFloat::new(2, 0x80, 15, 0x7b, 0x7c, 0x7f);
pub(super) const E4M3FNUZ: SmallFloat = SmallFloat::new(3, 0x80, 8, 0x7f, 0x80, 0x80);
pub(super) const E5M2FNUZ: SmallFloat = SmallFloat::new(2, 0x80, 16, 0x7f, 0x80, 0x80);
/// Every code of four bits is a number; there is no NaN.
pub(super) const E2M1: SmallFloat = SmallFloat::new(1, 0x8, 1, 0x7, 0x7, u32::MAX);

impl SmallFloat {
    const fn new(
        mantissa_bits: u32,
        sign_bit: u32,
        bias: u32,
        highest: u32,
        overflow: u32,
        nan: u32,
    ) -> SmallFloat {
        SmallFloat { mantissa_bits, sign_bit, bias, highest, overflow, nan }
    }

    /// Returns the largest finite number.
    pub(super) fn largest(&self) -> f64 {
        self.decode(self.highest).into()
    }

    /// Decodes a code. An `f32` can represent every number of these formats.
    #[inline]
    pub(super) const fn decode(&self, code: u32) -> f32 {
        let magnitude = code & (self.sign_bit - 1);
        let (exponent, mantissa) =
            (magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1));
        let unsigned = if magnitude > self.highest || code == self.nan {
            if magnitude == self.overflow { f32::INFINITY } else { f32::NAN }
        } else if exponent == 0 {
            mantissa as f32 * power_of_two(1 + F32_BIAS - self.bias - self.mantissa_bits)
        } else {
            let significand = mantissa | 1 << self.mantissa_bits;
            significand as f32 * power_of_two(exponent + F32_BIAS - self.bias - self.mantissa_bits)
        };
        if code & self.sign_bit == 0 { unsigned } else { -unsigned }
    }

    /// Encodes the nearest number, with ties to even.
    #[inline]
    pub(super) const fn encode(&self, x: f32) -> u32 {
        let magnitude = x.to_bits() & !F32_SIGN;
        let dropped_bits = F32_MANTISSA_BITS - self.mantissa_bits;
        let rebias = F32_BIAS - self.bias;
        let rounded = if magnitude < (rebias + 1) << F32_MANTISSA_BITS {
            // Subnormal. The last bit of the sum with this power of two has the weight of the last bit of the code,
            // so the addition rounds.
            let power = (rebias + dropped_bits + 1) << F32_MANTISSA_BITS;
            (f32::from_bits(magnitude) + f32::from_bits(power)).to_bits() - power
        } else {
            let almost_half = (1 << (dropped_bits - 1)) - 1;
            let is_odd = magnitude >> dropped_bits & 1;
            ((magnitude + almost_half + is_odd) >> dropped_bits) - (rebias << self.mantissa_bits)
        };
        let code = if magnitude > F32_INFINITY {
            self.nan
        } else if rounded > self.highest {
            self.overflow
        } else {
            rounded
        };
        // Formats that use the code of negative zero for NaN have only one zero.
        let has_sign = x.to_bits() & F32_SIGN != 0 && !(code == 0 && self.nan == self.sign_bit);
        if has_sign { code | self.sign_bit } else { code }
    }

    /// Decodes every code of one byte.
    pub(super) const fn table(&self) -> [f32; 256] {
        let mut values = [0.; 256];
        let mut code = 0;
        while code < values.len() {
            values[code] = self.decode(code as u32);
            code += 1;
        }
        values
    }
}

const F32_SIGN: u32 = 1 << 31;
const F32_INFINITY: u32 = f32::INFINITY.to_bits();
const F32_MANTISSA_BITS: u32 = 23;
const F32_BIAS: u32 = 127;

const fn power_of_two(biased_exponent: u32) -> f32 {
    f32::from_bits(biased_exponent << F32_MANTISSA_BITS)
}

/// Decodes `float8_e8m0fnu`: the exponent of an `f32` and nothing else. The highest code is NaN.
pub(super) const fn decode_e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << (F32_MANTISSA_BITS - 1)), // 2^-127 is subnormal
        0xff => f32::NAN,
        exponent => power_of_two(exponent as u32),
    }
}

/// Rounds as PyTorch does: the sign is dropped, a midpoint between two powers rounds up, and so does every value
/// between the two lowest powers.
pub(super) const fn encode_e8m0(x: f32) -> u8 {
    let magnitude = x.to_bits() & !F32_SIGN;
    let exponent = magnitude >> F32_MANTISSA_BITS;
    let half = 1 << (F32_MANTISSA_BITS - 1);
    let mantissa = magnitude & (2 * half - 1);
    let is_up = exponent < 0xff && if exponent == 0 { mantissa > half } else { mantissa >= half };
    (exponent + is_up as u32) as u8
}

macro_rules! byte_floats {
    ($($doc:literal $name:ident: $bits:ident => $decode:expr, $x:ident => $encode:expr;)*) => {$(
        #[doc = $doc]
        ///
        /// The field is the code of the number. Conversion from `f32` rounds as
        /// [`to_dtype`](crate::Tensor::to_dtype) does. Comparison is by value: NaN is not equal to anything, and
        /// negative zero, if the format has one, equals zero.
        ///
        /// ```
        #[doc = concat!("# use stridemap::small_float::", stringify!($name), ";")]
        #[doc = concat!("let two = ", stringify!($name), "::from(2.);")]
        #[doc = concat!("assert_eq!(f32::from(", stringify!($name), "(two.0)), 2.);")]
        /// ```
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                f32::from(*self) == f32::from(*other)
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                f32::from(*self).partial_cmp(&f32::from(*other))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&f32::from(*self), f)
            }
        }

        impl From<f32> for $name {
            fn from($x: f32) -> Self {
                $name($encode)
            }
        }

        impl From<$name> for f32 {
            fn from($name($bits): $name) -> f32 {
                $decode
            }
        }

        impl From<$name> for Scalar {
            fn from(value: $name) -> Scalar {
                f32::from(value).into()
            }
        }
    )*};
}

byte_floats! {
    "A `float8_e4m3fn`: up to 448, without infinity; larger numbers become 448."
    F8E4M3FN: bits => E4M3FN.decode(bits.into()), x => E4M3FN.encode(x) as u8;
    "A `float8_e8m0fnu`: a power of two from 2^-127, which is the default, to 2^127, or NaN, without sign or zero."
    F8E8M0FNU: bits => decode_e8m0(bits), x => encode_e8m0(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for bits in 0..=255 {
            let same = |x: f32, back: u32| x.is_nan() || back == u32::from(bits);
            for format in [E4M3FN, E5M2, E4M3FNUZ, E5M2FNUZ] {
                let x = format.decode(bits.into());
                assert!(same(x, format.encode(x)), "{bits:#x}");
            }
            let x = decode_e8m0(bits);
            assert!(same(x, encode_e8m0(x).into()), "{bits:#x}");
        }
        for bits in 0..=0xffff {
            let half = half::f16::from_bits(bits as u16);
            let value = F16.decode(bits);
            assert!(half.is_nan() && value.is_nan() || half.to_f32() == value && F16.encode(value) == bits);
        }
    }

    #[test]
    fn small_floats_compare_and_display_as_numbers() {
        assert_eq!(F8E4M3FN(0x80), F8E4M3FN::default());
        assert_ne!(F8E4M3FN::from(f32::NAN), F8E4M3FN::from(f32::NAN));
        assert!(F8E4M3FN::from(-2.) < F8E4M3FN::from(1.5));
        assert_eq!(format!("{:?}", F8E4M3FN::from(0.3)), "0.3125");
        assert_eq!(f32::from(F8E8M0FNU::default()), 2f32.powi(-127));
    }
}
