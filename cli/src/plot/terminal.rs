//! A heat map in the terminal.

use std::io::Write;

use crate::error::Result;
use crate::look::palette::Scale;
use crate::look::reduce::Blocks;
use crate::proportion::start_of;

/// The characters that show blocks without colors, from the lowest to the highest number of the scale.
const SHADES: &[u8] = b" .:-=+*#%@";

const NAN_SHADE: char = '?';

/// The number of lines from one row index at the side to the next.
const LABEL_ROWS: usize = 5;

/// Prints blocks, labelled with row and column indices of the whole matrix, whose size is `size`. With colors, a
/// character is two blocks, one above the other.
pub(crate) fn print(
    blocks: &Blocks,
    scale: Scale,
    size: (usize, usize),
    has_color: bool,
    out: &mut impl Write,
) -> Result<()> {
    let &Blocks { row_count, column_count, .. } = blocks;
    let label_width = label_width(size.0);
    let step = if has_color { 2 } else { 1 };
    let number = |row: usize, column: usize| blocks.numbers.get(row * column_count + column).copied();
    for (line, row) in (0..row_count).step_by(step).enumerate() {
        let label = (line % LABEL_ROWS == 0).then(|| first_index(row, row_count, size.0).to_string());
        let label = label.unwrap_or_default();
        write!(out, "{label:>label_width$} ")?;
        for column in 0..column_count {
            let top = number(row, column).unwrap_or_default();
            if has_color {
                let [r, g, b] = scale.color(top);
                write!(out, "\x1b[38;2;{r};{g};{b}m")?;
                match number(row + 1, column).map(|bottom| scale.color(bottom)) {
                    Some([r, g, b]) => write!(out, "\x1b[48;2;{r};{g};{b}m▀")?,
                    None => write!(out, "\x1b[49m▀")?,
                }
            } else {
                let shade = |place: f64| {
                    let at = ((place * SHADES.len() as f64) as usize).min(SHADES.len() - 1);
                    SHADES.get(at).copied().map_or(NAN_SHADE, char::from)
                };
                write!(out, "{}", scale.place(top).map_or(NAN_SHADE, shade))?;
            }
        }
        writeln!(out, "{}", if has_color { "\x1b[0m" } else { "" })?;
    }
    let mut axis = " ".repeat(label_width + 1);
    for column in (0..column_count).step_by(2 * LABEL_ROWS) {
        let label = first_index(column, column_count, size.1).to_string();
        let place = label_width + 1 + column;
        if axis.len() <= place && place + label.len() <= label_width + 1 + column_count.max(label.len()) {
            axis = format!("{axis:<place$}{label} ");
        }
    }
    Ok(writeln!(out, "{}", axis.trim_end())?)
}

/// Returns the width of the indices at the side.
pub(crate) fn label_width(row_count: usize) -> usize {
    row_count.saturating_sub(1).to_string().len()
}

/// Returns the index of the first row or column of a block.
fn first_index(block: usize, block_count: usize, n: usize) -> u64 {
    start_of(block, n as u64, block_count)
}
