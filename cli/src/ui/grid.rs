//! Names in columns, as `ls` prints them on a terminal.

use std::io::Write;

use unicode_width::UnicodeWidthStr as _;

use super::table::{LONG, shorten};
use crate::error::Result;

const GAP: usize = 2;

/// Prints cells in as many columns as fit, ordered from top to bottom and then from left to right. Long cells are shortened,
/// but not in a single column, where they are whole, and the terminal wraps them.
pub(crate) fn print_grid(cells: &[impl AsRef<str>], width: usize, out: &mut impl Write) -> Result<()> {
    let whole = cells;
    let cells: Vec<String> = cells.iter().map(|cell| shorten(cell.as_ref(), LONG.min(width))).collect();
    let widths: Vec<usize> = cells.iter().map(|cell| cell.width()).collect();
    let row_count = row_count(&widths, width);
    if row_count == cells.len() {
        return whole.iter().try_for_each(|cell| Ok(writeln!(out, "{}", cell.as_ref())?));
    }
    let columns: Vec<usize> = column_widths(&widths, row_count).collect();
    for row in 0..row_count {
        let mut line = String::new();
        for (column, &width) in columns.iter().enumerate() {
            let index = column * row_count + row;
            let (Some(cell), Some(cell_width)) = (cells.get(index), widths.get(index)) else { continue };
            let is_last = index + row_count >= cells.len();
            let padding = if is_last { 0 } else { width + GAP - cell_width };
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', padding));
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns the lowest number of rows with which the columns fit. From 128 rows on, the result can be slightly higher.
fn row_count(widths: &[usize], width: usize) -> usize {
    // Where the search starts: with fewer rows, columns of one character each would not fit.
    let least = widths.len().div_ceil((width + GAP) / (1 + GAP)).max(1);
    let fits = |&rows: &usize| {
        let (count, sum) =
            column_widths(widths, rows).fold((0usize, 0), |(n, sum), width| (n + 1, sum + width));
        sum + GAP * count.saturating_sub(1) <= width
    };
    // Steps of a 64th keep this fast for many names.
    std::iter::successors(Some(least), |rows| Some((rows + 1).max(rows + rows / 64)))
        .take_while(|&rows| rows < widths.len())
        .find(fits)
        .unwrap_or(widths.len())
}

fn column_widths(widths: &[usize], row_count: usize) -> impl Iterator<Item = usize> {
    widths.chunks(row_count.max(1)).map(|column| column.iter().copied().max().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(cells: &[&str], width: usize) -> String {
        let mut out = Vec::new();
        print_grid(cells, width, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_fill_columns_from_top_to_bottom() {
        let cells = ["a", "bb", "c", "dddd", "e"];
        assert_eq!(print(&cells, 80), "a  bb  c  dddd  e\n");
        assert_eq!(print(&cells, 12), "a   c     e\nbb  dddd\n");
        assert_eq!(print(&cells, 8), "a   dddd\nbb  e\nc\n");
        assert_eq!(print(&cells, 4), "a\nbb\nc\ndddd\ne\n");
        assert_eq!(print(&["層", "b"], 5), "層  b\n");
        assert_eq!(print(&[], 80), "");
    }

    #[test]
    fn no_line_of_several_columns_is_wider_than_the_terminal() {
        let names: Vec<String> = (0..500).map(|n| "x".repeat(n % 90 + 1)).collect();
        for width in [1, 10, 40, 80, 140] {
            let mut out = Vec::new();
            print_grid(&names, width, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let is_single = text.lines().count() == names.len();
            assert_eq!(is_single, width < 100, "{width}");
            for (line, name) in text.lines().zip(&names) {
                assert!(if is_single { line == name } else { line.width() <= width }, "{width}: {line}");
            }
        }
    }
}
