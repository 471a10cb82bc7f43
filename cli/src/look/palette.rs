//! The colors of a heat map.

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
    /// Returns the scale for these numbers, which are those that are drawn: the blocks of a large matrix are extremes,
    /// and would all be beyond a scale of its elements. Its limits are the 1st and the 99th percentile. If a number is
    /// below zero, the scale is signed, and its limit is the 99th percentile of the magnitudes. If nearly all numbers
    /// are zero, zeros do not count, and an unsigned scale begins at zero.
    pub(crate) fn of(numbers: &[f64]) -> Self {
        let mut finite: Vec<f64> = numbers.iter().copied().filter(|number| number.is_finite()).collect();
        let is_signed = finite.iter().any(|&number| number < 0.);
        // With the zeros, the few other numbers of a sparse matrix would have no color.
        let is_sparse = is_sparse(&finite);
        finite.retain(|&number| number != 0. || !is_sparse);
        if is_signed {
            finite.iter_mut().for_each(|number| *number = number.abs());
        }
        finite.sort_unstable_by(f64::total_cmp);
        // Few numbers are all within the limits.
        let last = finite.len().saturating_sub(1);
        let number = |at: usize| finite.get(at).copied().unwrap_or(0.);
        let high = number(last - last / 100);
        match is_signed {
            true => Scale::Signed(high),
            false => Scale::Unsigned(if is_sparse { 0. } else { number(last / 100) }, high),
        }
    }

    /// Returns the lowest and the highest number of the scale.
    pub(crate) fn limits(self) -> (f64, f64) {
        match self {
            Scale::Signed(limit) => (-limit, limit),
            Scale::Unsigned(low, high) => (low, high),
        }
    }

    /// Says what the limits of the scale of these numbers are.
    pub(crate) fn caption(self, numbers: &[f64]) -> String {
        let is_sparse = is_sparse(numbers);
        let others = if is_sparse { ", except for zeros" } else { "" };
        match self {
            Scale::Signed(limit) => {
                let limit = short(limit);
                format!("scale ±{limit}: the 99th percentile of the magnitudes that are drawn{others}")
            }
            Scale::Unsigned(low, high) => {
                let (low, high) = (short(low), short(high));
                let what = if is_sparse { "zero" } else { "the 1st" };
                format!("scale {low} to {high}: {what} and the 99th percentile of what is drawn{others}")
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

/// Returns whether at least 99 % of the finite numbers are zero, but not all.
fn is_sparse(numbers: &[f64]) -> bool {
    let finite = numbers.iter().filter(|number| number.is_finite());
    let (count, zeros) =
        finite.fold((0, 0), |(count, zeros), &number| (count + 1usize, zeros + usize::from(number == 0.)));
    zeros < count && zeros > count - count.div_ceil(100)
}

fn between(from: [u8; 3], to: [u8; 3], part: f64) -> [u8; 3] {
    let mixed = |from: u8, to: u8| (f64::from(from) * (1. - part) + f64::from(to) * part).round() as u8;
    let ([from_red, from_green, from_blue], [red, green, blue]) = (from, to);
    [mixed(from_red, red), mixed(from_green, green), mixed(from_blue, blue)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_leave_out_few_of_the_numbers_that_are_drawn() {
        assert_eq!(Scale::of(&[3., -5., f64::NAN, f64::INFINITY]), Scale::Signed(5.));
        assert_eq!(Scale::of(&[3., 5., f64::NAN]), Scale::Unsigned(3., 5.));
        assert_eq!(Scale::of(&[f64::NAN]), Scale::Unsigned(0., 0.));
        let many: Vec<f64> = (0..=1000).map(f64::from).collect();
        assert_eq!(Scale::of(&many), Scale::Unsigned(10., 990.));
        let both: Vec<f64> = (-1000..=1000).map(f64::from).collect();
        assert_eq!(Scale::of(&both), Scale::Signed(990.));
        let mut sparse = vec![0.; 40_000];
        assert_eq!(Scale::of(&sparse), Scale::Unsigned(0., 0.));
        sparse[7] = 2.;
        assert_eq!(Scale::of(&sparse), Scale::Unsigned(0., 2.));
        assert_eq!(
            Scale::of(&sparse).caption(&sparse),
            "scale 0 to 2: zero and the 99th percentile of what is drawn, except for zeros"
        );
        sparse[7] = -1.;
        sparse[900] = 0.5;
        assert_eq!(Scale::of(&sparse), Scale::Signed(1.));
        assert_eq!(
            Scale::of(&sparse).caption(&sparse),
            "scale ±1: the 99th percentile of the magnitudes that are drawn, except for zeros"
        );
    }

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
