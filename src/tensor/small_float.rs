//! The bit layouts of floats below 32 bits, which scalars and conversions share.

/// A small float: a sign, then exponent and mantissa bits. Its code stands in the low bits of a `u32`.
pub(super) struct SmallFloat {
    mantissa_bits: u32,
    sign_bit: u32,
    bias: u32,
    /// The code of the largest number.
    highest: u32,
    /// What PyTorch makes of a larger one: infinity, NaN, or the largest number again.
    overflow: u32,
    nan: u32,
}

pub(super) const F16: SmallFloat = SmallFloat::new(10, 0x8000, 15, 0x7bff, 0x7c00, 0x7e00);
pub(super) const E4M3FN: SmallFloat = SmallFloat::new(3, 0x80, 7, 0x7e, 0x7e, 0x7f);
pub(super) const E5M2: SmallFloat = SmallFloat::new(2, 0x80, 15, 0x7b, 0x7c, 0x7f);
pub(super) const E4M3FNUZ: SmallFloat = SmallFloat::new(3, 0x80, 8, 0x7f, 0x80, 0x80);
pub(super) const E5M2FNUZ: SmallFloat = SmallFloat::new(2, 0x80, 16, 0x7f, 0x80, 0x80);
/// Four bits are all numbers: no code is NaN.
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

    /// The number that a code stands for: a `f32` holds every one.
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

    /// The code of the nearest number; of two that are as near, the even one.
    #[inline]
    pub(super) const fn encode(&self, x: f32) -> u32 {
        let magnitude = x.to_bits() & !F32_SIGN;
        let dropped_bits = F32_MANTISSA_BITS - self.mantissa_bits;
        let rebias = F32_BIAS - self.bias;
        let rounded = if magnitude < (rebias + 1) << F32_MANTISSA_BITS {
            // Subnormal. In a sum with this power of two, the last bit is worth what it is in the code: adding rounds.
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
        // Where the code of negative zero is NaN, there is one zero.
        let has_sign = x.to_bits() & F32_SIGN != 0 && !(code == 0 && self.nan == self.sign_bit);
        if has_sign { code | self.sign_bit } else { code }
    }

    /// The numbers of all codes of a byte.
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

/// `float8_e8m0fnu`: the exponent of a `f32` and nothing else; the highest is NaN.
pub(super) const fn decode_e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << (F32_MANTISSA_BITS - 1)), // 2^-127 is subnormal
        0xff => f32::NAN,
        exponent => power_of_two(exponent as u32),
    }
}

/// As PyTorch rounds: signs are lost, the middle between two powers goes up, and so does all above the lowest power.
pub(super) const fn encode_e8m0(x: f32) -> u8 {
    let magnitude = x.to_bits() & !F32_SIGN;
    let exponent = magnitude >> F32_MANTISSA_BITS;
    let half = 1 << (F32_MANTISSA_BITS - 1);
    let mantissa = magnitude & (2 * half - 1);
    let is_up = exponent < 0xff && if exponent == 0 { mantissa > half } else { mantissa >= half };
    (exponent + is_up as u32) as u8
}
