//! Lines of the minimum, the mean and the maximum of a tensor over generations, for the terminal and for images.

use std::ops::Range;

use plotters::chart::ChartContext;
use plotters::coord::types::{RangedCoordf64, RangedCoordi32};
use plotters::prelude::*;

use super::figure::{Lines, unit};

/// Lines are drawn with these coordinates: the position of the generation, and a number divided by a unit.
pub(super) type Coordinates = Cartesian2d<RangedCoordi32, RangedCoordf64>;

/// The maximum number of generations that are marked on the lines.
const MAX_MARKS: usize = 60;

/// How the three lines are drawn.
pub(super) struct Pen {
    /// The colors of the minimum, the mean and the maximum.
    pub(super) colors: [RGBColor; 3],
    pub(super) width: u32,
    /// The radius of the marks of generations, in pixels.
    pub(super) radius: i32,
    /// Whether all generations are marked, if there are few, and not only those without neighbors.
    pub(super) has_marks: bool,
}

impl Lines {
    /// Returns the ranges of the coordinates, and the unit of the numbers. They have a range of at least 1, however large
    /// or small the elements are.
    pub(super) fn ranges(&self) -> (Range<i32>, Range<f64>, f64) {
        let positions = match i32::try_from(self.points.len()).unwrap_or(i32::MAX) {
            0 | 1 => -1..1,
            count => 0..count - 1,
        };
        let (min, max) = self.limits();
        let unit = unit((min, max));
        (positions, if min == max { -1. ..1. } else { min / unit..max / unit }, unit)
    }

    pub(super) fn draw<B: DrawingBackend>(
        &self,
        chart: &mut ChartContext<'_, B, Coordinates>,
        pen: &Pen,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let ((min, max), (.., unit)) = (self.limits(), self.ranges());
        let height = |number: f64| if min == max { 0. } else { number / unit };
        let runs = self.runs();
        // The mean is above the others.
        for line in [0, 2, 1] {
            let color = pen.colors.get(line).copied().unwrap_or(BLACK);
            for run in &runs {
                let path = run.iter().filter_map(|(at, numbers)| Some((*at, height(*numbers.get(line)?))));
                let path: Vec<(i32, f64)> = path.collect();
                if path.len() == 1 || pen.has_marks && self.points.len() <= MAX_MARKS {
                    chart.draw_series(path.iter().map(|&at| Circle::new(at, pen.radius, color.filled())))?;
                }
                chart.draw_series([PathElement::new(path, color.stroke_width(pen.width))])?;
            }
        }
        Ok(())
    }

    /// Returns the generations between gaps, each with its position and its numbers.
    fn runs(&self) -> Vec<Vec<(i32, [f64; 3])>> {
        let mut runs = vec![Vec::new()];
        for (position, point) in (0..).zip(&self.points) {
            match (point.numbers, runs.last_mut()) {
                (Some(numbers), Some(run)) => run.push((position, numbers)),
                _ => runs.push(Vec::new()),
            }
        }
        runs
    }
}
