//! Heat maps in the terminal.

use std::fmt::Write as _;

use crate::plot::figure::HeatMap;
use crate::proportion::part_of;

/// The characters that show blocks without colors, from the lowest to the highest number of the scale.
const SHADES: &[u8] = b" .:-=+*#%@";

const NAN_SHADE: char = '?';

/// The minimum number of lines from one row index at the side to the next, and of characters from one column index to the
/// next.
const LABEL_LINES: usize = 4;
const LABEL_COLUMNS: usize = 8;

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
    let mut indices = indices(map.size.0, (map.blocks.row_count, height), LABEL_LINES * step).peekable();
    let mut lines = Vec::new();
    for row in (0..row_count).step_by(step) {
        let label = indices.next_if(|(at, _)| *at < row + step).map(|(_, index)| index.to_string());
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
    let distance = LABEL_COLUMNS.max(label_width(map.size.1) + 2);
    let mut axis = " ".repeat(left);
    for (at, index) in indices(map.size.1, (column_count, width), distance) {
        let label = index.to_string();
        let fits = at + label.len() <= (column_count * width).max(label.len());
        if axis.len() <= left + at && fits {
            axis = format!("{axis:<place$}{label} ", place = left + at);
        }
    }
    axis.trim_end().to_owned()
}

/// Returns the indices of rows or columns that are printed: multiples of 1, 2, 5, 10, ... at least `distance` apart. Each
/// comes with where the block with the index begins; there are `block_count` blocks of one length.
fn indices(
    count: usize,
    (block_count, block_length): (usize, usize),
    distance: usize,
) -> impl Iterator<Item = (usize, u64)> {
    let (length, whole) = ((block_count * block_length) as u128, count as u64);
    let least = distance as u128 * count as u128;
    let mut steps = (0..).flat_map(|power| [1, 2, 5].map(|digit| digit * 10u128.pow(power)));
    let step = steps.find(|step| step * length >= least).and_then(|step| usize::try_from(step).ok());
    let indices = (0..whole).step_by(step.unwrap_or(usize::MAX));
    indices.map(move |index| (part_of(index, whole, block_count) * block_length, index))
}

/// Returns the width of the indices at the side.
pub(in crate::plot) fn label_width(row_count: usize) -> usize {
    row_count.saturating_sub(1).to_string().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_round_and_at_their_blocks() {
        let all = |count, blocks, distance| indices(count, blocks, distance).collect::<Vec<_>>();
        assert_eq!(all(384, (38, 1), 5), [(0, 0), (9, 100), (19, 200), (29, 300)]);
        assert_eq!(all(300, (38, 1), 5), [(0, 0), (6, 50), (12, 100), (19, 150), (25, 200), (31, 250)]);
        assert_eq!(all(6, (6, 4), 10), [(0, 0), (20, 5)]);
        assert_eq!(all(6, (6, 4), 8), [(0, 0), (8, 2), (16, 4)]);
        assert_eq!(all(3, (3, 8), 5), [(0, 0), (8, 1), (16, 2)]);
        assert_eq!(all(1, (1, 1), 5), [(0, 0)]);
        assert_eq!(all(0, (1, 1), 5), []);
        let huge = all(1 << 60, (40, 1), 5);
        assert_eq!(huge.len(), 6);
        assert_eq!(huge[1], (6, 200_000_000_000_000_000));
    }
}
