//! How many blocks a matrix is drawn as, and how large they are.

/// Blocks that together have about the proportions of a matrix, if they can.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grid {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The width and the height of a block: in pixels, or in characters and rows of the terminal.
    pub(super) block: (usize, usize),
    /// Whether the drawing has the proportions of the matrix.
    pub(super) is_to_scale: bool,
}

/// The minimum width and height of a drawn matrix in an image, in pixels.
const LEAST_SIDE: usize = 64;

/// The minimum width of a drawing in an image, in pixels. A matrix is at least this wide, unless its square blocks would
/// then be higher than the image allows.
pub(super) const LEAST_WIDTH: usize = 512;

/// A matrix that would have fewer blocks than this along a side of the terminal, to scale, is not drawn to scale.
const LEAST_BLOCKS: usize = 10;

/// The width and the height to which small matrices are enlarged in the terminal, in characters.
const ENLARGED: usize = 32;

/// The maximum width and height of a block in a terminal, in characters.
const MAX_ENLARGEMENT: usize = 8;

impl Grid {
    /// Returns the blocks of a matrix in an image that has at most `most` of them along a side, which are enlarged to at
    /// most `max_side` pixels. Nearly all blocks have equal numbers of elements.
    pub(super) fn in_image((rows, columns): (usize, usize), most: usize, max_side: usize) -> Self {
        // The number of elements along a side of a block.
        let part = |n: usize| n.div_ceil(most).max(1);
        let larger = part(rows).max(part(columns));
        let scaled = (rows.div_ceil(larger).max(1), columns.div_ceil(larger).max(1));
        let is_to_scale = scaled.0 >= rows.min(LEAST_SIDE) && scaled.1 >= columns.min(LEAST_SIDE);
        let (rows, columns) = match is_to_scale {
            true => scaled,
            false => (rows.div_ceil(part(rows)).max(1), columns.div_ceil(part(columns)).max(1)),
        };
        let side = LEAST_WIDTH.div_ceil(columns).min(max_side / rows).max(1);
        let least = |n: usize| LEAST_SIDE.div_ceil(n);
        let block = (side.max(least(columns)), side.max(least(rows)));
        Grid { rows, columns, block, is_to_scale: is_to_scale && block.0 == block.1 }
    }

    /// Returns the blocks of a matrix in a terminal. A character is twice as high as it is wide. With colors, it shows
    /// two rows, which are then square.
    pub(super) fn in_terminal(
        (rows, columns): (usize, usize),
        (lines, width): (usize, usize),
        has_color: bool,
    ) -> Self {
        // The heights of a row in the terminal, and of the drawing, in widths of a character.
        let row_height = if has_color { 1 } else { 2 };
        let height = 2 * lines;
        let scale = (width as f64 / columns as f64).min(height as f64 / rows as f64);
        let most = (ENLARGED / rows.max(columns).max(1)).clamp(row_height, MAX_ENLARGEMENT);
        let side = (scale as usize).min(most) / row_height * row_height;
        if side > 0 {
            return Grid { rows, columns, block: (side, side / row_height), is_to_scale: true };
        }
        // At most one character for a column.
        let scale = scale.min(1.);
        let scaled = |n: usize, unit: usize| n as f64 * scale / unit as f64;
        let (high, wide) = (scaled(rows, row_height), scaled(columns, 1));
        let least = |n: usize, unit: usize| n.min(LEAST_BLOCKS / unit) as f64 - 0.5;
        if high >= least(rows, row_height) && wide >= least(columns, 1) {
            let counted = |n: f64| n.round().max(1.) as usize;
            return Grid { rows: counted(high), columns: counted(wide), block: (1, 1), is_to_scale: true };
        }
        let (rows, columns) = (rows.min(height / row_height).max(1), columns.min(width).max(1));
        let enlarged = |n: usize, most: usize, limit: usize| (most / n).clamp(1, limit);
        let block = (enlarged(columns, width, 4), enlarged(rows, height / row_height, 2 / row_height));
        Grid { rows, columns, block, is_to_scale: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_to_scale_in_blocks_of_equal_numbers_of_elements_unless_a_side_is_short() {
        let grid = |rows, columns, block, is_to_scale| Grid { rows, columns, block, is_to_scale };
        for (size, most, expected) in [
            ((6, 8), 1024, grid(6, 8, (64, 64), true)),
            ((5000, 3000), 1024, grid(1000, 600, (1, 1), true)),
            ((5000, 3000), 256, grid(250, 150, (4, 4), true)),
            ((2048, 512), 1024, grid(1024, 256, (1, 1), true)),
            ((30_522, 384), 1024, grid(1018, 384, (1, 1), false)),
            ((1025, 7), 1024, grid(513, 7, (10, 1), false)),
            ((1, 1 << 20), 1024, grid(1, 1024, (1, 64), false)),
            ((1 << 60, 8), 1024, grid(1024, 8, (8, 1), false)),
        ] {
            assert_eq!(Grid::in_image(size, most, 1024), expected, "{size:?}");
        }
    }

    #[test]
    fn terminal_keeps_the_proportions_unless_a_side_would_have_few_blocks() {
        for size in
            [(6, 8), (100, 100), (256, 258), (3072, 768), (768, 3072), (1, 9), (3, 70), (30_000, 30_000)]
        {
            for has_color in [false, true] {
                for space in [(40, 76), (131, 136), (20, 36)] {
                    let grid = Grid::in_terminal(size, space, has_color);
                    let (width, height) = (grid.columns * grid.block.0, grid.rows * grid.block.1);
                    let lines = if has_color { height.div_ceil(2) } else { height };
                    assert!(width <= space.1 && lines <= space.0, "{size:?} {space:?} {grid:?}");
                    if grid.is_to_scale {
                        let height = (if has_color { height } else { 2 * height }) as f64;
                        let expected = width as f64 * size.0 as f64 / size.1 as f64;
                        assert!((height - expected).abs() <= 2.01, "{size:?} {space:?} {grid:?}");
                    }
                }
            }
        }
        let grid = |rows, columns, block, is_to_scale| Grid { rows, columns, block, is_to_scale };
        for (size, has_color, expected) in [
            // Enlarged.
            ((6, 8), true, grid(6, 8, (4, 4), true)),
            ((6, 8), false, grid(6, 8, (4, 2), true)),
            ((2, 30), false, grid(2, 30, (2, 1), true)),
            ((256, 256), true, grid(76, 76, (1, 1), true)),
            ((3072, 768), true, grid(80, 20, (1, 1), true)),
            // The whole space is used instead of a few columns.
            ((30_522, 384), true, grid(80, 76, (1, 1), false)),
            ((30_522, 384), false, grid(40, 76, (1, 1), false)),
            ((6, 4000), true, grid(6, 76, (1, 2), false)),
            ((1 << 60, 8), true, grid(80, 8, (4, 1), false)),
        ] {
            assert_eq!(Grid::in_terminal(size, (40, 76), has_color), expected, "{size:?}");
        }
    }
}
