//! Figures in the terminal.

mod heat_map;
mod lines;

use std::io::Write;

use anstream::adapter::strip_str;
use unicode_width::UnicodeWidthStr as _;

use super::figure::{Drawing, Figure, Panel};
use crate::error::Result;
use crate::look::chart::bars;

pub(super) use heat_map::label_width;

/// The minimum width of a drawing beside others.
const LEAST_WIDTH: usize = 32;

/// The space between drawings.
const GAP: usize = 3;

/// Returns how many of `count` drawings are beside each other, and the width of each.
pub(super) fn columns(count: usize, width: usize) -> (usize, usize) {
    let most = ((width + GAP) / (LEAST_WIDTH + GAP)).clamp(1, count.max(1));
    // As few rows as possible, which are about equally long.
    let columns = count.div_ceil(count.div_ceil(most).max(1)).max(1);
    (columns, ((width + GAP) / columns).saturating_sub(GAP).max(1))
}

/// Prints the drawings of a figure, in rows that fit the width.
pub(super) fn print(figure: &Figure, width: usize, has_color: bool, out: &mut impl Write) -> Result<()> {
    let (columns, width) = columns(figure.panels.len(), width);
    for (row, panels) in figure.panels.chunks(columns).enumerate() {
        if row > 0 {
            writeln!(out)?;
        }
        let titles = panels.iter().map(|panel| panel.title_lines(width)).collect();
        print_beside(titles, width, out)?;
        writeln!(out)?;
        print_beside(panels.iter().map(|panel| panel.drawing_lines(width, has_color)).collect(), width, out)?;
        writeln!(out)?;
        print_beside(panels.iter().map(|panel| panel.caption_lines(width)).collect(), width, out)?;
    }
    if let Some(note) = figure.note {
        writeln!(out, "\n{note}")?;
    }
    Ok(())
}

impl Panel {
    fn drawing_lines(&self, width: usize, has_color: bool) -> Vec<String> {
        match &self.drawing {
            Drawing::HeatMap(map) => heat_map::lines(map, has_color),
            Drawing::Histogram(histogram) => bars(&histogram.counts, histogram.limits, width),
            Drawing::Lines(drawn) => lines::lines(drawn, width),
        }
    }
}

/// Prints columns of lines beside each other.
fn print_beside(columns: Vec<Vec<String>>, width: usize, out: &mut impl Write) -> Result<()> {
    let count = columns.iter().map(Vec::len).max().unwrap_or_default();
    for row in 0..count {
        let mut line = String::new();
        let mut end = 0;
        for (column, lines) in columns.iter().enumerate() {
            let Some(text) = lines.get(row).filter(|text| !text.is_empty()) else { continue };
            let left = column * (width + GAP);
            line.push_str(&" ".repeat(left.saturating_sub(end)));
            line.push_str(text);
            end = left.max(end) + strip_str(text).to_string().width();
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_are_beside_each_other_if_the_width_allows() {
        for (count, width, expected) in [
            (1, 80, (1, 80)),
            (2, 40, (1, 40)),
            (2, 80, (2, 38)),
            (3, 80, (2, 38)),
            (3, 140, (3, 44)),
            (5, 140, (3, 44)),
            (8, 140, (4, 32)),
            (4, 10, (1, 10)),
            (1, 1, (1, 1)),
        ] {
            assert_eq!(columns(count, width), expected, "{count} {width}");
        }
    }

    #[test]
    fn columns_stay_in_line_with_colors_and_wide_characters() {
        let columns = vec![
            vec!["\u{1b}[31mab\u{1b}[0m".to_owned(), String::new()],
            vec!["重み".to_owned(), "x".to_owned()],
            vec!["c".to_owned()],
        ];
        let mut out = Vec::new();
        print_beside(columns, 5, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\u{1b}[31mab\u{1b}[0m      重み    c\n        x\n");
    }
}
