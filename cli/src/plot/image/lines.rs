//! Lines over generations in images.

use plotters::prelude::*;

use super::{Area, CHARACTER_WIDTH, CHART_SIZE, Drawn, LABEL_HEIGHT, font};
use crate::look::chart::short;
use crate::plot::figure::Lines;
use crate::plot::lines::Pen;
use crate::ui::shorten;

const PEN: Pen = Pen {
    colors: [RGBColor(33, 102, 172), RGBColor(90, 90, 90), RGBColor(178, 24, 43)],
    width: 2,
    radius: 3,
    has_marks: true,
};

/// The maximum number of characters of a tag below the lines.
const LABEL_LENGTH: usize = 14;

/// The space above and below the lines, as a part of their height.
const MARGIN: f64 = 0.05;

pub(super) fn draw<B: DrawingBackend>(lines: &Lines, area: &Area<B>) -> Drawn<B> {
    let (positions, numbers, unit) = lines.ranges();
    let margin = (numbers.end - numbers.start) * MARGIN;
    let numbers = numbers.start - margin..numbers.end + margin;
    let (min, max) = lines.limits();
    let is_constant = min == max;
    let tag = |at: &i32| {
        let point = usize::try_from(*at).ok().and_then(|at| lines.points.get(at));
        point.map(|point| shorten(&point.label, LABEL_LENGTH)).unwrap_or_default()
    };
    let number = |at: &f64| if is_constant { short(min) } else { short(at * unit + 0.) };
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, (10 * CHARACTER_WIDTH + 14) as u32)
        .set_label_area_size(LabelAreaPosition::Bottom, LABEL_HEIGHT as u32)
        .build_cartesian_2d(positions, numbers)?;
    let most_tags = CHART_SIZE.0 / ((LABEL_LENGTH + 2) * CHARACTER_WIDTH);
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(font())
        .x_labels(most_tags)
        .y_labels(if is_constant { 1 } else { 6 })
        .x_label_formatter(&tag)
        .y_label_formatter(&number)
        .draw()?;
    lines.draw(&mut chart, &PEN)
}
