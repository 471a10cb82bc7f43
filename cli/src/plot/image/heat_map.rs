//! Heat maps in images.

use plotters::prelude::*;

use super::{Area, CHARACTER_WIDTH, Drawn, FONT_SIZE, LABEL_HEIGHT, font};
use crate::look::chart::short;
use crate::look::palette::Scale;
use crate::plot::figure::HeatMap;

const FRAME_COLOR: RGBColor = RGBColor(150, 150, 170);

/// The bar of the colors of a scale: its distance from the drawing, its width, and its width with labels.
const BAR_DISTANCE: usize = 28;
const BAR_WIDTH: usize = 20;
const BAR_AND_LABELS: usize = 130;

/// Returns the width and the height without labels.
pub(super) fn size(map: &HeatMap) -> (usize, usize) {
    (map.grid.columns * map.grid.block.0, map.grid.rows * map.grid.block.1)
}

/// Returns the width of the last of `n` indices.
pub(super) fn index_width(n: usize) -> usize {
    n.saturating_sub(1).to_string().len() * CHARACTER_WIDTH
}

/// Draws the heat map and its labels in an area, which is at a place in the area of the panel.
pub(super) fn draw<B: DrawingBackend>(
    map: &HeatMap,
    (left, top): (usize, usize),
    area: &Area<B>,
    panel: &Area<B>,
) -> Drawn<B> {
    let (width, height) = size(map);
    let left = left + index_width(map.size.0) + 14;
    let bar_left = left + width + BAR_DISTANCE;
    let bar = panel.clone().shrink((bar_left as u32, top as u32), (BAR_AND_LABELS as u32, height as u32));
    draw_scale(map.scale, height as i32, &bar)?;
    draw_blocks(map, area)?;
    // What is outside of an area would be drawn on its edge.
    for (left, width) in [(left, width), (bar_left, BAR_WIDTH)] {
        let (left, top) = (left as i32, top as i32);
        let corners = [(left - 1, top - 1), (left + width as i32, top + height as i32)];
        panel.draw(&Rectangle::new(corners, FRAME_COLOR))?;
    }
    Ok(())
}

fn draw_blocks<B: DrawingBackend>(map: &HeatMap, area: &Area<B>) -> Drawn<B> {
    let ((rows, columns), (width, height)) = (map.size, size(map));
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, (index_width(rows) + 14) as u32)
        .set_label_area_size(LabelAreaPosition::Bottom, LABEL_HEIGHT as u32)
        .build_cartesian_2d(-0.5..columns as f64 - 0.5, rows as f64 - 0.5..-0.5)?;
    // Adding zero makes a negative zero positive.
    let index = |at: &f64| format!("{:.0}", at + 0.);
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(font())
        .x_labels((width / (index_width(columns) + 36)).clamp(1, columns))
        .y_labels((height / 60).clamp(1, rows))
        .x_label_formatter(&index)
        .y_label_formatter(&index)
        .draw()?;
    let area = chart.plotting_area().strip_coord_spec();
    let (width, height) = (map.grid.block.0 as i32, map.grid.block.1 as i32);
    for (i, &number) in map.blocks.numbers.iter().enumerate() {
        let (row, column) = (i / map.blocks.column_count, i % map.blocks.column_count);
        let (x, y) = (column as i32 * width, row as i32 * height);
        let color = rgb(map.scale.color(number));
        area.draw(&Rectangle::new([(x, y), (x + width, y + height)], color.filled()))?;
    }
    Ok(())
}

/// Draws a bar of the colors of a scale, with its limits.
fn draw_scale<B: DrawingBackend>(scale: Scale, height: i32, area: &Area<B>) -> Drawn<B> {
    const STEPS: i32 = 64;
    let (low, high) = scale.limits();
    for step in 0..STEPS {
        let part = f64::from(step) / f64::from(STEPS - 1);
        let color = rgb(scale.color(high * (1. - part) + low * part));
        let [top, bottom] = [step, step + 1].map(|step| step * height / STEPS);
        area.draw(&Rectangle::new([(0, top), (BAR_WIDTH as i32, bottom)], color.filled()))?;
    }
    let middle = matches!(scale, Scale::Signed(_)).then_some((0.5, 0.));
    let ends = if low == high { vec![(0.5, low)] } else { vec![(0., high), (1., low)] };
    for (part, number) in ends.into_iter().chain(middle) {
        let y = (part * f64::from(height - FONT_SIZE as i32)) as i32;
        area.draw_text(&short(number), &font(), (BAR_WIDTH as i32 + 8, y))?;
    }
    Ok(())
}

fn rgb([red, green, blue]: [u8; 3]) -> RGBColor {
    RGBColor(red, green, blue)
}
