//! Compares two elements: whether they are equal, and how far apart they are.

use half::{bf16, f16};
use stridemap::small_float::{F4E2M1FNx2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU};
use stridemap::{DType, Scalar};

/// The largest difference between elements that count as equal: `|a - b| <= absolute + relative * |b|`.
#[derive(Clone, Copy)]
pub(crate) struct Tolerance {
    pub(crate) relative: f64,
    pub(crate) absolute: f64,
}

/// How two elements that are not equal differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Gap {
    /// Their dtype, such as bool, has no distance.
    Unmeasured,
    /// At least one of them is NaN.
    Nan,
    /// The distance `|a - b|`, which is exact for integers, and `|a - b| / |b|`, which is infinite if b is 0.
    By(Scalar, f64),
}

/// Calls `visit` with the position and the two elements wherever the bytes differ. `a` and `b` have the same length.
/// Returns false for an unknown dtype.
pub(super) fn for_each_unequal(
    dtype: DType,
    a: &[u8],
    b: &[u8],
    visit: impl FnMut(usize, Scalar, Scalar),
) -> bool {
    let real = |x: f32| Scalar::Float(x.into());
    match dtype {
        DType::Bool => visit_unequal(a, b, |[x]: [u8; 1]| Scalar::Bool(x != 0), visit),
        DType::U8 => visit_unequal(a, b, |x| Scalar::Int(u8::from_le_bytes(x).into()), visit),
        DType::U16 => visit_unequal(a, b, |x| Scalar::Int(u16::from_le_bytes(x).into()), visit),
        DType::U32 => visit_unequal(a, b, |x| Scalar::Int(u32::from_le_bytes(x).into()), visit),
        DType::U64 => visit_unequal(a, b, |x| Scalar::Int(u64::from_le_bytes(x).into()), visit),
        DType::I8 => visit_unequal(a, b, |x| Scalar::Int(i8::from_le_bytes(x).into()), visit),
        DType::I16 => visit_unequal(a, b, |x| Scalar::Int(i16::from_le_bytes(x).into()), visit),
        DType::I32 => visit_unequal(a, b, |x| Scalar::Int(i32::from_le_bytes(x).into()), visit),
        DType::I64 => visit_unequal(a, b, |x| Scalar::Int(i64::from_le_bytes(x).into()), visit),
        DType::F16 => visit_unequal(a, b, |x| real(f16::from_le_bytes(x).to_f32()), visit),
        DType::BF16 => visit_unequal(a, b, |x| real(bf16::from_le_bytes(x).to_f32()), visit),
        DType::F32 => visit_unequal(a, b, |x| real(f32::from_le_bytes(x)), visit),
        DType::F64 => visit_unequal(a, b, |x| Scalar::Float(f64::from_le_bytes(x)), visit),
        DType::C64 => visit_unequal(
            a,
            b,
            |[r0, r1, r2, r3, i0, i1, i2, i3]: [u8; 8]| {
                let part = |bytes| f64::from(f32::from_le_bytes(bytes));
                Scalar::Complex(part([r0, r1, r2, r3]), part([i0, i1, i2, i3]))
            },
            visit,
        ),
        DType::C128 => visit_unequal(
            a,
            b,
            |x: [u8; 16]| {
                let bits = u128::from_le_bytes(x);
                Scalar::Complex(f64::from_bits(bits as u64), f64::from_bits((bits >> 64) as u64))
            },
            visit,
        ),
        DType::F8E4M3FN => visit_unequal(a, b, |[x]: [u8; 1]| real(F8E4M3FN::from_bits(x).to_f32()), visit),
        DType::F8E5M2 => visit_unequal(a, b, |[x]: [u8; 1]| real(F8E5M2::from_bits(x).to_f32()), visit),
        DType::F8E4M3FNUZ => {
            visit_unequal(a, b, |[x]: [u8; 1]| real(F8E4M3FNUZ::from_bits(x).to_f32()), visit)
        }
        DType::F8E5M2FNUZ => {
            visit_unequal(a, b, |[x]: [u8; 1]| real(F8E5M2FNUZ::from_bits(x).to_f32()), visit)
        }
        DType::F8E8M0FNU => visit_unequal(a, b, |[x]: [u8; 1]| real(F8E8M0FNU::from_bits(x).to_f32()), visit),
        DType::F4E2M1FNx2 => visit_unequal(a, b, |[x]: [u8; 1]| F4E2M1FNx2::from_bits(x).into(), visit),
        _ => return false,
    }
    true
}

fn visit_unequal<const W: usize>(
    a: &[u8],
    b: &[u8],
    decode: impl Fn([u8; W]) -> Scalar,
    mut visit: impl FnMut(usize, Scalar, Scalar),
) {
    for (position, (a, b)) in a.as_chunks::<W>().0.iter().zip(b.as_chunks::<W>().0).enumerate() {
        if a != b {
            visit(position, decode(*a), decode(*b));
        }
    }
}

impl Tolerance {
    /// Returns how two elements of the same dtype differ, or `None` if they count as equal.
    pub(super) fn gap(self, a: Scalar, b: Scalar) -> Option<Gap> {
        match (a, b) {
            (Scalar::Int(a), Scalar::Int(b)) => {
                // Integers have at most 64 bits, so the difference fits.
                let (distance, size) = (a.abs_diff(b), b.unsigned_abs() as f64);
                let is_equal = a == b || self.allows(distance as f64, size);
                (!is_equal).then(|| Gap::By(Scalar::Int(distance as i128), relative(distance as f64, size)))
            }
            (Scalar::Float(a), Scalar::Float(b)) => self.real_gap(a, b),
            (Scalar::Complex(..), Scalar::Complex(..)) => self.complex_gap(a, b),
            (Scalar::Pair(a_low, a_high), Scalar::Pair(b_low, b_high)) => {
                let gaps = [self.real_gap(a_low, b_low), self.real_gap(a_high, b_high)];
                gaps.into_iter().flatten().reduce(Gap::larger)
            }
            _ => (a != b).then_some(Gap::Unmeasured),
        }
    }

    fn real_gap(self, a: f64, b: f64) -> Option<Gap> {
        if is_same(a, b) {
            return None;
        }
        if a.is_nan() || b.is_nan() {
            return Some(Gap::Nan);
        }
        self.distance_gap((a - b).abs(), b.abs())
    }

    fn complex_gap(self, a: Scalar, b: Scalar) -> Option<Gap> {
        let (Scalar::Complex(a_re, a_im), Scalar::Complex(b_re, b_im)) = (a, b) else { return None };
        if is_same(a_re, b_re) && is_same(a_im, b_im) {
            return None;
        }
        if [a_re, a_im, b_re, b_im].into_iter().any(f64::is_nan) {
            return Some(Gap::Nan);
        }
        // Infinity minus itself would be NaN.
        let part = |a: f64, b: f64| if a == b { 0. } else { a - b };
        self.distance_gap(part(a_re, b_re).hypot(part(a_im, b_im)), b_re.hypot(b_im))
    }

    fn distance_gap(self, distance: f64, size: f64) -> Option<Gap> {
        (!self.allows(distance, size)).then(|| Gap::By(Scalar::Float(distance), relative(distance, size)))
    }

    /// Returns whether the distance is within the tolerance. No tolerance covers an infinite value or distance.
    fn allows(self, distance: f64, size: f64) -> bool {
        size.is_finite() && distance.is_finite() && distance <= self.absolute + self.relative * size
    }
}

impl Gap {
    fn larger(self, other: Gap) -> Gap {
        match (self, other) {
            (Gap::By(a, a_relative), Gap::By(b, b_relative)) => {
                Gap::By(larger(a, b), a_relative.max(b_relative))
            }
            (gap, _) => gap,
        }
    }
}

/// Returns the larger of two distances.
pub(super) fn larger(a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Int(x), Scalar::Int(y)) => Scalar::Int(x.max(y)),
        (Scalar::Float(x), Scalar::Float(y)) => Scalar::Float(x.max(y)),
        _ => a,
    }
}

/// Returns whether two values are equal. NaN equals NaN.
fn is_same(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

fn relative(distance: f64, size: f64) -> f64 {
    if distance.is_infinite() { f64::INFINITY } else { distance / size }
}
