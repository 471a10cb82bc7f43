//! Heat maps in the terminal.

use std::fmt::Write as _;

use crate::plot::figure::HeatMap;
use crate::proportion::start_of;

/// The characters that show blocks without colors, from the lowest to the highest number of the scale.
const SHADES: &[u8] = b" .:-=+*#%@";

const NAN_SHADE: char = '?';

/// The minimum number of lines from one row index at the side to the next, and of characters from one column index to the
/// next.
const LABEL_LINES: usize = 5;
const LABEL_COLUMNS: usize = 10;

/// Returns the lines of a heat map, with row and column indices of the whole matrix. With colors, a character is two
/// rows, one above the other.
pub(super) fn lines(map: &HeatMap, has_color: bool) -> Vec<String> {
    let (label_width, (_, height)) = (label_width(map.size.0), map.grid.block);
    let number = |row: usize, column: usize| {
        let row = row / height;
        let number = map.blocks.numbers.get(row * map.blocks.column_count + column).copied();
        number.filter(|_| row < map.blocks.row_count)
    };
    let (row_count, step) = (map.blocks.row_count * height, if has_color { 2 } else { 1 });
    let (mut lines, mut next_label) = (Vec::new(), 0);
    for (at, row) in (0..row_count).step_by(step).enumerate() {
        // Of a block that is several lines high, the first has the index.
        let is_first = row == 0 || row / height != (row - step) / height;
        let label = (is_first && at >= next_label)
            .then(|| start_of(row / height, map.size.0 as u64, map.blocks.row_count).to_string());
        next_label = if label.is_some() { at + LABEL_LINES } else { next_label };
        let mut line = format!("{:>label_width$} ", label.unwrap_or_default());
        for column in 0..map.blocks.column_count {
            let top = number(row, column).unwrap_or_default();
            let text = match has_color {
                true => half_blocks(map, top, number(row + 1, column), map.grid.block.0),
                false => shade(map, top).to_string().repeat(map.grid.block.0),
            };
            line.push_str(&text);
        }
        lines.push(if has_color { line + "\x1b[0m" } else { line });
    }
    lines.push(column_indices(map, label_width + 1));
    lines
}

/// Returns characters whose upper half has the color of a number, and whose lower half that of another.
fn half_blocks(map: &HeatMap, top: f64, bottom: Option<f64>, width: usize) -> String {
    let [r, g, b] = map.scale.color(top);
    let mut text = format!("\x1b[38;2;{r};{g};{b}m");
    // Writing to a string does not fail.
    let _ = match bottom.map(|bottom| map.scale.color(bottom)) {
        Some([r, g, b]) => write!(text, "\x1b[48;2;{r};{g};{b}m"),
        None => write!(text, "\x1b[49m"),
    };
    text + &"▀".repeat(width)
}

fn shade(map: &HeatMap, number: f64) -> char {
    let shade = |place: f64| {
        let at = ((place * SHADES.len() as f64) as usize).min(SHADES.len() - 1);
        SHADES.get(at).copied().map_or(NAN_SHADE, char::from)
    };
    map.scale.place(number).map_or(NAN_SHADE, shade)
}

/// Returns the line of indices below a heat map that begins at `left`.
fn column_indices(map: &HeatMap, left: usize) -> String {
    let (width, column_count) = (map.grid.block.0, map.blocks.column_count);
    let mut axis = " ".repeat(left);
    let mut next_label = 0;
    for column in 0..column_count {
        let at = column * width;
        let label = start_of(column, map.size.1 as u64, column_count).to_string();
        let fits = at + label.len() <= (column_count * width).max(label.len());
        if at >= next_label && axis.len() <= left + at && fits {
            axis = format!("{axis:<place$}{label} ", place = left + at);
            next_label = at + LABEL_COLUMNS;
        }
    }
    axis.trim_end().to_owned()
}

/// Returns the width of the indices at the side.
pub(in crate::plot) fn label_width(row_count: usize) -> usize {
    row_count.saturating_sub(1).to_string().len()
}
