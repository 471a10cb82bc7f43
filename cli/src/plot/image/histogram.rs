//! Histograms in images.

use plotters::prelude::*;

use super::{Area, CHARACTER_WIDTH, CHART_SIZE, Drawn, LABEL_HEIGHT, font};
use crate::look::chart::short;
use crate::plot::figure::{Histogram, unit};

const BAR_COLOR: RGBColor = RGBColor(33, 102, 172);

pub(super) fn draw<B: DrawingBackend>(histogram: &Histogram, area: &Area<B>) -> Drawn<B> {
    let (min, max) = histogram.limits;
    let is_constant = min == max;
    // If all elements are equal, they are in the last bin.
    let all = &histogram.counts[..];
    let counts = if is_constant { all.last().map_or(all, std::slice::from_ref) } else { all };
    let most = counts.iter().copied().max().unwrap_or_default().max(1);
    let unit = unit((min, max));
    let range = if is_constant { -1. ..1. } else { min / unit..max / unit };
    let label = |at: &f64| if is_constant { short(min) } else { short(at * unit + 0.) };
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, (10 * CHARACTER_WIDTH + 14) as u32)
        .set_label_area_size(LabelAreaPosition::Bottom, LABEL_HEIGHT as u32)
        .build_cartesian_2d(range, 0. ..most as f64)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(font())
        .x_labels(if is_constant { 1 } else { 6 })
        .y_labels(most.saturating_add(1).min(6) as usize)
        .x_label_formatter(&label)
        .y_label_formatter(&|count| short(*count))
        .draw()?;
    let area = chart.plotting_area().strip_coord_spec();
    let (width, height) = CHART_SIZE;
    for (bin, &count) in counts.iter().enumerate() {
        let [left, right] = [bin, bin + 1].map(|bin| (bin * width / counts.len()) as i32);
        // Rounded up, so that a bin that is not empty has a visible bar.
        let bar = (count as f64 / most as f64 * height as f64).ceil() as i32;
        if bar > 0 {
            let corners = [(left, height as i32 - bar), (right - 1, height as i32)];
            area.draw(&Rectangle::new(corners, BAR_COLOR.filled()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_magnitude_are_drawn() {
        for limits in [
            (-f64::MAX, f64::MAX),
            (0., 5e-324),
            (1e16, 1e16 + 2.),
            (1e300, 1e300),
            (-1e-20, 3e-20),
            (f64::MIN_POSITIVE, 1e308),
        ] {
            let mut text = String::new();
            let histogram = Histogram { counts: vec![1, 0, u64::MAX], limits };
            let size = (CHART_SIZE.0 as u32 + 200, CHART_SIZE.1 as u32 + 200);
            draw(&histogram, &SVGBackend::with_string(&mut text, size).into_drawing_area()).unwrap();
            let label = if limits.0 == limits.1 { short(limits.0) } else { "0".to_owned() };
            assert!(text.contains(&label) && text.contains("#2166AC"), "{limits:?} {text}");
        }
    }
}
