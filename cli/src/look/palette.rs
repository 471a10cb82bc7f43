//! The colors of a heat map.

use stridemap::Statistics;

use super::chart::short;

/// How numbers become colors. Numbers beyond the limits have the color of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Blue below zero, white at zero, red above. The limits are this number and its negative.
    Signed(f64),
    /// White at the first number, dark blue at the second.
    Unsigned(f64, f64),
}

/// The color of NaN.
pub(crate) const NAN: [u8; 3] = [255, 0, 255];

const BLUE: [u8; 3] = [33, 102, 172];
const WHITE: [u8; 3] = [247, 247, 247];
const RED: [u8; 3] = [178, 24, 43];
const DARK_BLUE: [u8; 3] = [8, 48, 107];

impl Scale {
    /// Returns the scale of these elements. Its limits are the 0.1 and 99.9 percentiles. If an element is below zero,
    /// the scale is signed, and its limit is the larger magnitude of the two percentiles.
    pub(crate) fn of(statistics: &Statistics) -> Self {
        let low = statistics.quantile(0.001).unwrap_or(0.);
        let high = statistics.quantile(0.999).unwrap_or(0.);
        if statistics.quantile(0.).is_some_and(|min| min < 0.) {
            Scale::Signed(low.abs().max(high.abs()))
        } else {
            Scale::Unsigned(low, high)
        }
    }

    /// Returns the lowest and the highest number of the scale.
    pub(crate) fn limits(self) -> (f64, f64) {
        match self {
            Scale::Signed(limit) => (-limit, limit),
            Scale::Unsigned(low, high) => (low, high),
        }
    }

    /// Says what the limits are.
    pub(crate) fn caption(self) -> String {
        match self {
            Scale::Signed(limit) => {
                format!("scale ±{}: the larger magnitude of the 0.1 and 99.9 percentiles", short(limit))
            }
            Scale::Unsigned(low, high) => {
                format!("scale {} to {}, clipped at the 0.1 and 99.9 percentiles", short(low), short(high))
            }
        }
    }

    /// Returns the place of a number on the scale, from 0 to 1. `None` for NaN.
    pub(crate) fn place(self, number: f64) -> Option<f64> {
        let (low, high) = self.limits();
        match (number.is_nan(), self) {
            (true, _) => None,
            // The limits are equal if nearly all elements are equal.
            (_, Scale::Signed(_)) if low == high => Some(0.5),
            _ if low == high => Some(f64::from(u8::from(number > low))),
            _ => Some((number.clamp(low, high) / 2. - low / 2.) / (high / 2. - low / 2.)),
        }
    }

    /// Returns the color of a number, as red, green and blue.
    pub(crate) fn color(self, number: f64) -> [u8; 3] {
        match (self.place(number), self) {
            (None, _) => NAN,
            (Some(place), Scale::Signed(_)) if place < 0.5 => between(BLUE, WHITE, place * 2.),
            (Some(place), Scale::Signed(_)) => between(WHITE, RED, place * 2. - 1.),
            (Some(place), Scale::Unsigned(..)) => between(WHITE, DARK_BLUE, place),
        }
    }
}

fn between(from: [u8; 3], to: [u8; 3], part: f64) -> [u8; 3] {
    [0, 1, 2].map(|i| (f64::from(from[i]) * (1. - part) + f64::from(to[i]) * part).round() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_white_and_numbers_beyond_the_limits_have_the_color_of_the_limit() {
        let scale = Scale::Signed(2.);
        assert_eq!([-9., -2., 0., 2., f64::INFINITY].map(|x| scale.color(x)), [BLUE, BLUE, WHITE, RED, RED]);
        assert_eq!([scale.color(f64::NAN), Scale::Unsigned(0., 1.).color(f64::NAN)], [NAN; 2]);
        assert_eq!([1., 3.].map(|x| Scale::Unsigned(1., 3.).color(x)), [WHITE, DARK_BLUE]);
        assert_eq!(Scale::Signed(0.).color(0.), WHITE);
        assert_eq!(Scale::Unsigned(7., 7.).color(7.), WHITE);
    }
}
