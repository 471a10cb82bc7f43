//! How much two tensors differ as a whole.

use stridemap::Scalar;

use super::elements::widened;

/// Sums over the elements of two tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Norms {
    count: f64,
    squared_change: f64,
    squared_a: f64,
    squared_b: f64,
    dot: f64,
}

impl Norms {
    pub(super) fn add(&mut self, a: Scalar, b: Scalar) {
        let (a, b) = widened(a, b);
        let ((a_first, a_second), (b_first, b_second)) = (parts(a), parts(b));
        self.merge(Norms {
            count: 1.,
            squared_change: (a_first - b_first).powi(2) + (a_second - b_second).powi(2),
            squared_a: a_first.powi(2) + a_second.powi(2),
            squared_b: b_first.powi(2) + b_second.powi(2),
            dot: a_first * b_first + a_second * b_second,
        });
    }

    pub(super) fn merge(&mut self, other: Norms) {
        self.count += other.count;
        self.squared_change += other.squared_change;
        self.squared_a += other.squared_a;
        self.squared_b += other.squared_b;
        self.dot += other.dot;
    }

    /// Returns the root of the mean of the squared differences.
    pub(super) fn rms(self) -> f64 {
        (self.squared_change / self.count).sqrt()
    }

    /// Returns the norm of the differences, relative to that of B. It is infinite if B is zero.
    pub(super) fn relative(self) -> f64 {
        (self.squared_change / self.squared_b).sqrt()
    }

    /// Returns the cosine of the angle between the two. It is NaN if one of them is zero.
    pub(super) fn cosine(self) -> f64 {
        (self.dot / (self.squared_a.sqrt() * self.squared_b.sqrt())).clamp(-1., 1.)
    }
}

/// Returns an element as one or two numbers.
fn parts(scalar: Scalar) -> (f64, f64) {
    match scalar {
        Scalar::Bool(value) => (f64::from(u8::from(value)), 0.),
        Scalar::Int(value) => (value as f64, 0.),
        Scalar::Float(value) => (value, 0.),
        Scalar::Complex(first, second) | Scalar::Pair(first, second) => (first, second),
        _ => (f64::NAN, 0.),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_those_of_the_vectors_of_all_elements() {
        let mut norms = Norms::default();
        for (a, b) in [(3., 3.), (0., 4.)] {
            norms.add(Scalar::Float(a), Scalar::Float(b));
        }
        assert_eq!((norms.rms(), norms.relative(), norms.cosine()), (8f64.sqrt(), 0.8, 0.6));
        let mut complex = Norms::default();
        complex.add(Scalar::Complex(0., 2.), Scalar::Int(2));
        assert_eq!((complex.rms(), complex.cosine()), (8f64.sqrt(), 0.));
        let mut zero = Norms::default();
        zero.add(Scalar::Int(1), Scalar::Bool(false));
        assert!(zero.relative().is_infinite() && zero.cosine().is_nan());
    }
}
