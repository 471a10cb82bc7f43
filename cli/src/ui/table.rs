//! Tables that fit the terminal, or have tabs in a pipe.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::iter::{self, repeat_n};

use indicatif::HumanBytes;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr};

use super::term::{BOLD, GAP, paint, width};
use crate::error::Result;

/// The maximum number of rows in a table that need not be complete, such as that of `map`. More would be hard to read,
/// and a table is built in memory. JSON output has no limit.
pub(crate) const MAX_ROWS: usize = 1000;

/// The maximum width of a column whose cells can be shortened, unless at least a quarter of its cells are wider.
const LONG: usize = 60;

/// The width down to which a column is narrowed before any column is dropped.
const SHORT: usize = 16;

/// The same for names of tensors. It is larger, because names often differ in the middle, where they are shortened.
const SHORT_NAME: usize = 40;

#[derive(Clone, Copy)]
enum Whole {
    Never,
    /// If two of them would look the same when shortened.
    IfAlike,
    Always,
}

pub(crate) struct Column {
    title: &'static str,
    is_right: bool,
    /// The width down to which the column is narrowed before any column is dropped. `None` if its cells are never
    /// shortened.
    short: Option<usize>,
    /// A smaller width down to which it is narrowed before any column is dropped that has this position or a later one.
    shorter: Option<(usize, u8)>,
    /// When cells that do not fit are printed whole, above the rest of their rows.
    whole: Whole,
    /// The position in the order in which columns are dropped. Those of the same position are dropped together. `None` if the
    /// column is never dropped.
    drop_order: Option<u8>,
}

impl Column {
    /// Creates a column that is always printed in full.
    pub(crate) const fn new(title: &'static str) -> Self {
        Column { title, is_right: false, short: None, shorter: None, whole: Whole::Never, drop_order: None }
    }

    /// Aligns the cells to the right, as numbers are.
    pub(crate) const fn right(mut self) -> Self {
        self.is_right = true;
        self
    }

    /// Lets long cells be shortened in the middle.
    pub(crate) const fn shortenable(mut self) -> Self {
        self.short = Some(SHORT);
        self
    }

    /// Lets long names of tensors be shortened in the middle.
    pub(crate) const fn shortenable_names(mut self) -> Self {
        self.short = Some(SHORT_NAME);
        self.whole = Whole::IfAlike;
        self
    }

    /// Prints long cells whole, above the rest of their rows.
    pub(crate) const fn whole(mut self) -> Self {
        self.whole = Whole::Always;
        self
    }

    /// Narrows the column further, down to `width`, rather than drop a column that is dropped at `position` or later.
    pub(crate) const fn down_to(mut self, width: usize, position: u8) -> Self {
        self.shorter = Some((width, position));
        self
    }

    /// Lets the column be dropped if the table does not fit. The lowest position is dropped first.
    pub(crate) const fn drop_order(mut self, position: u8) -> Self {
        self.drop_order = Some(position);
        self
    }
}

pub(crate) struct Table<'a> {
    columns: &'a [Column],
    rows: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(columns: &'a [Column]) -> Self {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints an empty line and the table, or nothing if there are no rows.
    pub(crate) fn print_section(&self, count: u64, option_for_all: &str, out: &mut impl Write) -> Result<()> {
        if !self.rows.is_empty() {
            writeln!(out)?;
        }
        self.print(count, option_for_all, out)
    }

    /// Prints the titles and the rows, or nothing if there are no rows. `count` is the number of all rows. If some were
    /// left out, the last line says how many, and that `option_for_all` prints them.
    pub(crate) fn print(&self, count: u64, option_for_all: &str, out: &mut impl Write) -> Result<()> {
        self.print_rows(!self.rows.is_empty(), out)?;
        match count.saturating_sub(self.rows.len() as u64) {
            0 => Ok(()),
            left_out => Ok(writeln!(out, "... and {left_out} more; {option_for_all} has all of them")?),
        }
    }

    /// Prints the rows. On a terminal, the titles come first.
    pub(crate) fn print_data(&self, out: &mut impl Write) -> Result<()> {
        self.print_rows(width().is_some() && !self.rows.is_empty(), out)
    }

    /// Prints the rows, below the titles if `has_titles`.
    fn print_rows(&self, has_titles: bool, out: &mut impl Write) -> Result<()> {
        let widths = self.widths(width());
        if has_titles {
            let titles = self.columns.iter().map(|column| column.title);
            writeln!(out, "{}", paint(BOLD, &self.line(titles, widths.as_deref())))?;
        }
        let name_width = widths.as_deref().and_then(|widths| self.whole_width(widths));
        for row in &self.rows {
            if let (Some(width), Some((name, others))) = (name_width, row.split_first())
                && shown_width(name) > width
            {
                let others = others.iter().map(String::as_str);
                let below = self.line(iter::once("").chain(others), widths.as_deref());
                writeln!(out, "{name}")?;
                if !below.is_empty() {
                    writeln!(out, "{below}")?;
                }
                continue;
            }
            writeln!(out, "{}", self.line(row.iter().map(String::as_str), widths.as_deref()))?;
        }
        Ok(())
    }

    /// Returns the width of the first column, if those of its cells that do not fit are printed whole.
    fn whole_width(&self, widths: &[Option<usize>]) -> Option<usize> {
        let width = (*widths.first()?)?;
        match self.columns.first()?.whole {
            Whole::Never => return None,
            Whole::Always => return Some(width),
            Whole::IfAlike => {}
        }
        let mut names = BTreeMap::new();
        for name in self.rows.iter().filter_map(|row| row.first()) {
            if names.insert(shorten(name, width), name).is_some_and(|other| other != name) {
                return Some(width);
            }
        }
        None
    }

    /// Returns a row: with tabs if there are no widths.
    fn line<'b>(&self, cells: impl Iterator<Item = &'b str>, widths: Option<&[Option<usize>]>) -> String {
        let Some(widths) = widths else { return cells.collect::<Vec<_>>().join("\t") };
        let mut line = String::new();
        for ((cell, column), &width) in cells.zip(self.columns).zip(widths) {
            let Some(width) = width else { continue };
            let mut cell = Cow::from(cell);
            let mut cell_width = shown_width(&cell);
            if cell_width > width {
                cell = shorten(&cell, width).into();
                cell_width = shown_width(&cell);
            }
            let mut padding = repeat_n(' ', width.saturating_sub(cell_width));
            if column.is_right {
                line.extend(padding.by_ref());
            }
            line.push_str(&cell);
            line.extend(padding);
            line.push_str(GAP);
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// Returns the width of each column: `None` for those that are empty, and for those that are dropped because the table
    /// would be too wide. Without a limit, there are no widths.
    fn widths(&self, width: Option<usize>) -> Option<Vec<Option<usize>>> {
        let width = width?;
        let natural: Vec<usize> = (0..self.columns.len()).map(|index| self.natural_width(index)).collect();
        let has_text =
            |index: usize| self.rows.iter().any(|row| row.get(index).is_some_and(|cell| !cell.is_empty()));
        let mut is_kept: Vec<bool> = (0..natural.len()).map(has_text).collect();
        loop {
            let mut widths: Vec<Option<usize>> =
                natural.iter().zip(&is_kept).map(|(&width, &is_kept)| is_kept.then_some(width)).collect();
            let kept = self.columns.iter().zip(&is_kept).filter(|(_, is_kept)| **is_kept);
            let next = kept.filter_map(|(column, _)| column.drop_order).min();
            if self.shorten_columns(&mut widths, next, width) || next.is_none() {
                return Some(widths);
            }
            for (column, is_kept) in self.columns.iter().zip(&mut is_kept) {
                *is_kept &= column.drop_order != next;
            }
        }
    }

    /// Narrows the widest column that can be shortened, by one at a time, until the table fits. Returns whether it fits.
    /// `next` is the position of the column that would be dropped. Without one, columns may become as narrow as needed.
    fn shorten_columns(&self, widths: &mut [Option<usize>], next: Option<u8>, width: usize) -> bool {
        loop {
            let gaps = widths.iter().flatten().count().saturating_sub(1) * GAP.len();
            if widths.iter().flatten().sum::<usize>() + gaps <= width {
                return true;
            }
            let long = widths.iter_mut().zip(self.columns).filter_map(|(width, column)| {
                let least = match (next, column.shorter) {
                    (None, _) => 1,
                    (Some(next), Some((shorter, position))) if next >= position => shorter,
                    _ => column.short?,
                };
                width.as_mut().filter(|width| column.short.is_some() && **width > least)
            });
            match long.max() {
                Some(width) => *width -= 1,
                None => return false,
            }
        }
    }

    /// Returns the width that a column would have without a limit for the table.
    fn natural_width(&self, index: usize) -> usize {
        let Some(column) = self.columns.get(index) else { return 0 };
        let cells = self.rows.iter().filter_map(|row| row.get(index));
        let mut widths: Vec<usize> = cells.map(|cell| shown_width(cell)).collect();
        widths.sort_unstable();
        let longest = widths.last().copied().unwrap_or_default();
        let limit = match widths.get(widths.len() * 3 / 4) {
            Some(&usual) if column.short.is_some() => usual.max(LONG),
            _ => longest,
        };
        longest.min(limit).max(shown_width(column.title))
    }
}

/// Prints a label and a value. On a terminal, the label is padded to `label_width`; in a pipe, a tab separates the two.
pub(crate) fn print_line(label: &str, value: &str, label_width: usize, out: &mut impl Write) -> Result<()> {
    match width() {
        Some(_) => writeln!(out, "{}{value}", paint(BOLD, &format!("{label:<label_width$}")))?,
        None => writeln!(out, "{}\t{value}", paint(BOLD, label))?,
    }
    Ok(())
}

/// Formats a number of bytes: for people on a terminal, and in digits in a pipe.
pub(crate) fn bytes_cell(bytes: u64) -> String {
    if width().is_some() { HumanBytes(bytes).to_string() } else { bytes.to_string() }
}

/// Returns how many columns of a terminal a text takes. That of ASCII, which most names are, is its length.
fn shown_width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

/// Shortens a text in the middle to at most `width` columns.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    let all = shown_width(text);
    if all <= width {
        return text.to_owned();
    }
    // One column is for the ellipsis. The end of a name says more than its beginning.
    let (start, end) = (width.saturating_sub(1) / 2, width.saturating_sub(1).div_ceil(2));
    let mut used = 0;
    let fits = |limit: usize, used: &mut usize, c: char| {
        *used += c.width().unwrap_or(0);
        *used <= limit
    };
    let head: String = text.chars().take_while(|&c| fits(start, &mut used, c)).collect();
    used = 0;
    let tail: Vec<char> = text.chars().rev().take_while(|&c| fits(end, &mut used, c)).collect();
    let tail: String = tail.into_iter().rev().skip_while(|c| c.width() == Some(0)).collect();
    if width == 0 { String::new() } else { format!("{head}…{tail}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::new("name").shortenable_names(),
        Column::new("dtype").drop_order(2),
        Column::new("bytes").right(),
        Column::new("storage").drop_order(1),
    ];

    fn print(rows: &[[&str; 4]], width: Option<usize>) -> Vec<String> {
        let mut table = Table::new(&COLUMNS);
        rows.iter().for_each(|row| table.add_row(row.map(str::to_owned)));
        let widths = table.widths(width);
        table.rows.iter().map(|row| table.line(row.iter().map(String::as_str), widths.as_deref())).collect()
    }

    #[test]
    fn names_that_would_look_the_same_are_printed_whole_above_their_rows() {
        let ambiguous = |names: &[&str], width: usize| {
            let mut table = Table::new(&COLUMNS);
            names.iter().for_each(|name| table.add_row([name, "int8", "7", "1"].map(str::to_owned)));
            let widths = table.widths(Some(width)).unwrap();
            table.whole_width(&widths)
        };
        let layers =
            ["encoder.layer.0.attention.self.query.weight", "encoder.layer.1.attention.self.query.weight"];
        assert_eq!(ambiguous(&layers, 20), Some(13));
        assert_eq!(ambiguous(&layers, 80), None);
        assert_eq!(
            ambiguous(&["encoder.layer.0.attention.query", "decoder.layer.0.attention.key"], 20),
            None
        );
        // Rows of one name look the same because they are.
        assert_eq!(ambiguous(&[layers[0], layers[0]], 20), None);
    }

    #[test]
    fn pipe_gets_tabs_and_whole_cells() {
        let long = "x".repeat(250);
        assert_eq!(print(&[[&long, "f32", "12", "1"]], None), [format!("{long}\tf32\t12\t1")]);
    }

    #[test]
    fn every_line_fits_the_width() {
        let long = "encoder.".repeat(40);
        let rows =
            [[&*long, "float32", "1000", "0000000000000001"], ["層.w", "int8", "1", "0000000000000002"]];
        for width in [9, 16, 24, 40, 80, 140, 400] {
            for line in print(&rows, Some(width)) {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn long_name_does_not_widen_the_other_rows() {
        let long = "x".repeat(250);
        let mut rows = vec![["weight", "float32", "10", "1"]; 9];
        let line = |rows: &[[&str; 4]]| print(rows, Some(140)).remove(0);
        rows.push([&long, "float32", "10", "1"]);
        assert_eq!(line(&rows).find("float32"), Some(LONG + GAP.len()));
        rows.pop();
        assert_eq!(line(&rows).find("float32"), Some("weight".len() + GAP.len()));
    }

    #[test]
    fn columns_are_dropped_in_their_order() {
        let rows = [["encoder.layer.0.weight", "float32", "1000", "0000000000000001"]];
        assert_eq!(print(&rows, Some(60)), ["encoder.layer.0.weight  float32   1000  0000000000000001"]);
        assert_eq!(print(&rows, Some(40)), ["encoder.layer.0.weight  float32   1000"]);
        assert_eq!(print(&rows, Some(32)), ["encoder.layer.0.weight   1000"]);
        assert_eq!(print(&rows, Some(26)), ["encoder.l….0.weight   1000"]);
        assert_eq!(print(&rows, Some(10)), ["e…t   1000"]);
        let rows = [[&*"x".repeat(50), "float32", "1000", "0000000000000001"]];
        assert_eq!(print(&rows, Some(57))[0].find('f'), Some(45));
        assert_eq!(print(&rows, Some(54))[0].find('f'), None);
    }

    #[test]
    fn name_is_narrowed_further_rather_than_lose_a_later_column() {
        const COLUMNS: [Column; 3] = [
            Column::new("name").shortenable_names().down_to(10, 2),
            Column::new("a").drop_order(1),
            Column::new("b").drop_order(2),
        ];
        let mut table = Table::new(&COLUMNS);
        table.add_row(["x".repeat(50), "aaaaaaaa".to_owned(), "bbbbbbbb".to_owned()]);
        for (width, expected) in [
            (60, [Some(40), Some(8), Some(8)]),
            (59, [Some(49), None, Some(8)]),
            (20, [Some(10), None, Some(8)]),
            (19, [Some(19), None, None]),
        ] {
            assert_eq!(table.widths(Some(width)).unwrap(), expected, "{width}");
        }
    }

    #[test]
    fn empty_columns_are_left_out_on_a_terminal() {
        let rows = [["a", "", "1000", ""], ["b", "", "1", ""]];
        assert_eq!(print(&rows, Some(60)), ["a      1000", "b         1"]);
        assert_eq!(print(&rows, None), ["a\t\t1000\t", "b\t\t1\t"]);
    }

    #[test]
    fn text_is_shortened_in_the_middle_by_its_width() {
        assert_eq!(shorten("abcdefgh", 8), "abcdefgh");
        assert_eq!(shorten("abcdefgh", 6), "ab…fgh");
        assert_eq!(shorten("層層層層", 6), "層…層");
        assert_eq!([shorten("ab", 1), shorten("ab", 0)], ["…", ""]);
    }
}
