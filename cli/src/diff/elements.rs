//! Compares two elements: whether they are equal, and how far apart they are.

use stridemap::Scalar;

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

/// Returns two elements as the wider of their kinds: bools become integers, integers floats, and floats complex numbers.
pub(super) fn widened(a: Scalar, b: Scalar) -> (Scalar, Scalar) {
    let rank = |scalar| match scalar {
        Scalar::Bool(_) => 0,
        Scalar::Int(_) => 1,
        Scalar::Float(_) => 2,
        _ => 3,
    };
    let wide = |scalar, other| match (scalar, rank(other)) {
        (Scalar::Bool(value), 1) => Scalar::Int(value.into()),
        (Scalar::Bool(value), 2) => Scalar::Float(f64::from(u8::from(value))),
        (Scalar::Int(value), 2) => Scalar::Float(value as f64),
        (Scalar::Bool(value), 3) => alike(f64::from(u8::from(value)), other),
        (Scalar::Int(value), 3) => alike(value as f64, other),
        (Scalar::Float(value), 3) => alike(value, other),
        _ => scalar,
    };
    (wide(a, b), wide(b, a))
}

/// Returns a real number as a complex number or a pair, like another element.
fn alike(value: f64, other: Scalar) -> Scalar {
    match other {
        Scalar::Pair(..) => Scalar::Pair(value, value),
        _ => Scalar::Complex(value, 0.),
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
