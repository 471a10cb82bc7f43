//! Lines over generations in the terminal, in Braille characters, each of which is two by four dots.

use anstyle::{AnsiColor, Style};
use plotters::prelude::*;
use unicode_width::UnicodeWidthStr as _;

use crate::look::chart::short;
use crate::plot::figure::{Lines, Point};
use crate::plot::lines::Pen;
use crate::ui::{paint, shorten};

/// Each line has a part of the color of a pixel for itself.
const PEN: Pen = Pen {
    colors: [RGBColor(0, 0, 255), RGBColor(0, 255, 0), RGBColor(255, 0, 0)],
    width: 1,
    radius: 1,
    has_marks: false,
};

/// The styles of the minimum, the mean and the maximum.
const STYLES: [Style; 3] = [AnsiColor::Blue.on_default(), Style::new(), AnsiColor::Red.on_default()];

/// From which part of a color on, of 255, a dot is drawn. A line between two dots has about half in each.
const LEAST_PART: u8 = 100;

/// The bits of the dots in a character, in row-major order.
const DOTS: [u32; 8] = [0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80];

/// The maximum width of a drawing, and its height.
const MAX_WIDTH: usize = 100;
const HEIGHT: usize = 15;

/// Returns the lines of a drawing, with the limits at the left and tags below.
pub(super) fn lines(drawn: &Lines, width: usize) -> Vec<String> {
    let (min, max) = drawn.limits();
    let limits = if min == max {
        vec![(HEIGHT / 2, min)]
    } else {
        vec![(0, max), (HEIGHT / 2, max / 2. + min / 2.), (HEIGHT - 1, min)]
    };
    let label = |row: usize| {
        let limit = limits.iter().find(|(at, _)| *at == row);
        limit.map(|(_, number)| short(*number)).unwrap_or_default()
    };
    let label_width = (0..HEIGHT).map(|row| label(row).len()).max().unwrap_or_default();
    let width = width.saturating_sub(label_width + 1).clamp(2, MAX_WIDTH);
    let pixels = pixels(drawn, (width, HEIGHT));
    let rows = (0..HEIGHT).map(|row| {
        let cells = (0..width).map(|column| cell(&pixels, width, (row, column)));
        format!("{:>label_width$} {}", label(row), joined(cells)).trim_end().to_owned()
    });
    rows.chain([format!("{} {}", " ".repeat(label_width), tags(drawn, width))]).collect()
}

/// Draws the lines in an image with a pixel for each dot: three bytes each, in row-major order.
fn pixels(drawn: &Lines, (width, height): (usize, usize)) -> Vec<u8> {
    let size = (2 * width as u32, 4 * height as u32);
    let mut pixels = vec![0; 2 * width * 4 * height * 3];
    let (positions, numbers, _) = drawn.ranges();
    let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
    // Drawing in memory does not fail.
    if let Ok(mut chart) = ChartBuilder::on(&area).build_cartesian_2d(positions, numbers) {
        let _ = drawn.draw(&mut chart, &PEN);
    }
    drop(area);
    pixels
}

/// Returns a character, and the style of its line.
fn cell(pixels: &[u8], width: usize, (row, column): (usize, usize)) -> (char, Style) {
    let (mut bits, mut has_line) = (0, [false; 3]);
    for (dot, bit) in DOTS.into_iter().enumerate() {
        let (y, x) = (4 * row + dot / 2, 2 * column + dot % 2);
        let at = 3 * (y * 2 * width + x);
        let parts = pixels.get(at..at + 3).unwrap_or_default();
        // Red is the maximum, green the mean and blue the minimum.
        for (has_line, &part) in has_line.iter_mut().rev().zip(parts) {
            if part >= LEAST_PART {
                bits |= bit;
                *has_line = true;
            }
        }
    }
    let [min_style, mean_style, max_style] = STYLES;
    let style = match has_line {
        [_, true, _] => mean_style,
        [.., true] => max_style,
        _ => min_style,
    };
    (if bits == 0 { ' ' } else { char::from_u32(0x2800 + bits).unwrap_or(' ') }, style)
}

/// Returns a line of characters without blanks at its end.
fn joined(cells: impl Iterator<Item = (char, Style)>) -> String {
    let mut runs = Vec::<(String, Style)>::new();
    for (character, style) in cells {
        match runs.last_mut() {
            Some((text, last)) if character == ' ' || *last == style => text.push(character),
            _ => runs.push((character.into(), style)),
        }
    }
    if let Some((text, _)) = runs.last_mut() {
        text.truncate(text.trim_end().len());
    }
    let painted = runs.iter().filter(|(text, _)| !text.is_empty()).map(|(text, style)| match *style {
        style if style == Style::new() => text.clone(),
        style => paint(style, text),
    });
    painted.collect()
}

/// Returns the first and the last tag, at the ends of a line, or the only one in its middle.
fn tags(drawn: &Lines, width: usize) -> String {
    let room = (width / 2).saturating_sub(1).max(1);
    let tag = |point: &Point| shorten(&point.label, room);
    let [first, last] =
        [drawn.points.first(), drawn.points.last()].map(|point| point.map(tag).unwrap_or_default());
    let blank = |n: usize| " ".repeat(n);
    match drawn.points.len() {
        1 => blank((width / 2).saturating_sub(first.width() / 2)) + &first,
        _ => format!("{first}{}{last}", blank(width.saturating_sub(first.width() + last.width()))),
    }
}
