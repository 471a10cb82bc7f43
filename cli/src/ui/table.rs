//! Tables.

use std::io::Write;

use comfy_table::{Table, presets};

use crate::error::Result;

/// The maximum number of rows in a printed table. More would be hard to read, and a table is built in memory. JSON
/// output has no limit.
pub(crate) const MAX_ROWS: usize = 1000;

pub(crate) fn columns<'a>(names: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(names);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Prints a table, or nothing if it has no rows. `count` is the total number of rows, including those left out.
pub(crate) fn print_table(table: &Table, count: u64, out: &mut impl Write) -> Result<()> {
    if !table.is_empty() {
        writeln!(out, "\n{}", table.trim_fmt())?;
    }
    match count.saturating_sub(table.row_count() as u64) {
        0 => Ok(()),
        left_out => Ok(writeln!(out, "... and {left_out} more; --json has all of them")?),
    }
}
