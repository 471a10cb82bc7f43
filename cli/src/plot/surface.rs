//! Where a figure is drawn.

use super::grid::Grid;
use super::terminal;
use crate::look::palette::Scale;

/// What a drawing has room for.
#[derive(Clone, Copy)]
pub(super) enum Surface {
    /// Characters, in at most this many lines.
    Terminal { width: usize, lines: usize, has_color: bool },
    /// An image: the maximum number of blocks along a side of a heat map, and the length to which they are enlarged.
    Image { most_blocks: usize, max_side: usize },
}

/// The maximum number of bins of a histogram in the terminal, where a line follows with the upper edge of the last.
const MAX_BINS: usize = 15;

/// The number of bins of a histogram in an image.
const IMAGE_BINS: usize = 30;

impl Surface {
    /// Returns the blocks of a matrix.
    pub(super) fn grid(self, size: (usize, usize)) -> Grid {
        match self {
            Surface::Image { most_blocks, max_side } => Grid::in_image(size, most_blocks, max_side),
            Surface::Terminal { width, lines, has_color } => {
                let width = width.saturating_sub(terminal::label_width(size.0) + 1).max(1);
                Grid::in_terminal(size, (lines, width), has_color)
            }
        }
    }

    pub(super) fn bin_count(self) -> usize {
        match self {
            Surface::Image { .. } => IMAGE_BINS,
            Surface::Terminal { lines, .. } => lines.min(MAX_BINS),
        }
    }

    /// Says how numbers look. An image has a bar of its colors instead.
    pub(super) fn legend(self, scale: Scale) -> Option<&'static str> {
        match (self, scale) {
            (Surface::Image { .. }, _) => None,
            (Surface::Terminal { has_color: false, .. }, Scale::Signed(_)) => {
                Some("from blank, the lowest, over = and + around zero to @, the highest")
            }
            (Surface::Terminal { has_color: false, .. }, Scale::Unsigned(..)) => {
                Some("from blank, the lowest, to @, the highest")
            }
            (_, Scale::Signed(_)) => Some("blue below zero, white at zero, red above"),
            (_, Scale::Unsigned(..)) => Some("from white, the lowest, to dark blue, the highest"),
        }
    }

    pub(super) fn has_color(self) -> bool {
        match self {
            Surface::Image { .. } => true,
            Surface::Terminal { has_color, .. } => has_color,
        }
    }
}
