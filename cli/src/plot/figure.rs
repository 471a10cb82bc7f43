//! What is drawn: one description for the terminal and for images.

use super::grid::Grid;
use crate::look::palette::Scale;
use crate::look::reduce::Blocks;
use crate::ui::wrapped;

/// Drawings side by side.
pub(super) struct Figure {
    pub(super) panels: Vec<Panel>,
    /// A line below all of them.
    pub(super) note: Option<&'static str>,
}

/// A drawing, its title, and the lines below it.
pub(super) struct Panel {
    /// The expression of the tensor or view.
    pub(super) expr: String,
    pub(super) title: String,
    pub(super) drawing: Drawing,
    pub(super) caption: Vec<String>,
}

pub(super) enum Drawing {
    HeatMap(HeatMap),
    Histogram(Histogram),
    Lines(Lines),
}

/// Blocks of a matrix of `size` rows and columns.
pub(super) struct HeatMap {
    pub(super) blocks: Blocks,
    pub(super) scale: Scale,
    pub(super) size: (usize, usize),
    pub(super) grid: Grid,
}

/// Counts in bins of equal width between two numbers.
pub(super) struct Histogram {
    pub(super) counts: Vec<u64>,
    pub(super) limits: (f64, f64),
}

/// A tensor in several generations, the oldest first.
pub(super) struct Lines {
    pub(super) points: Vec<Point>,
}

/// A tensor in one generation.
pub(super) struct Point {
    /// The tag of the generation.
    pub(super) label: String,
    /// The minimum, the mean and the maximum. `None` if the generation is a gap in the lines.
    pub(super) numbers: Option<[f64; 3]>,
}

impl Lines {
    /// Returns the lowest and the highest number.
    pub(super) fn limits(&self) -> (f64, f64) {
        let numbers = self.points.iter().filter_map(|point| point.numbers);
        let limits = numbers.map(|[min, _, max]| (min, max));
        limits.reduce(|(a, b), (min, max)| (a.min(min), b.max(max))).unwrap_or_default()
    }
}

impl Figure {
    /// Returns the titles and the captions.
    pub(super) fn text(&self) -> String {
        let texts = self.panels.iter().map(|panel| format!("{}\n{}", panel.title, panel.caption.join("\n")));
        texts.chain(self.note.map(str::to_owned)).collect::<Vec<_>>().join("\n\n")
    }
}

impl Panel {
    /// Returns the lines of the title, of at most `width` characters.
    pub(super) fn title_lines(&self, width: usize) -> Vec<String> {
        wrapped(&self.title, width)
    }

    /// Returns the lines of the caption, of at most `width` characters.
    pub(super) fn caption_lines(&self, width: usize) -> Vec<String> {
        self.caption.iter().flat_map(|line| wrapped(line, width)).collect()
    }
}

/// Returns a power of ten by which the numbers of an axis are divided, so that they have a range of at least 1, however
/// large or small they are.
pub(super) fn unit((min, max): (f64, f64)) -> f64 {
    // The difference of halves cannot overflow.
    10f64.powf((max / 2. - min / 2.).log10().floor().clamp(-300., 307.))
}
