//! Images of heat maps and histograms, with axes and a caption.

use super::raster::{BLACK, CHARACTER_HEIGHT, CHARACTER_WIDTH, Color, Image, drawable, text_width};
use crate::look::chart::short;
use crate::look::palette::Scale;
use crate::look::reduce::Blocks;
use crate::proportion::part_of;

/// The minimum width and height of a drawn matrix, in pixels.
const LEAST_SIDE: usize = 64;
/// The minimum width of the space for a drawing, in pixels. A matrix is at least this wide too, unless its square
/// blocks would then be more than `MAX_BLOCKS` pixels high together.
const LEAST_WIDTH: usize = 512;

/// The maximum number of blocks along a side.
const MAX_BLOCKS: usize = 1024;

const HISTOGRAM_SIZE: (usize, usize) = (720, 360);
const BAR_COLOR: Color = [33, 102, 172];

const MARGIN: usize = 16;
const LINE_HEIGHT: usize = CHARACTER_HEIGHT + 8;
const TICK: usize = 6;
const COLOR_BAR_WIDTH: usize = 20;

/// The words beside a drawing.
pub(super) struct Text {
    pub(super) title: String,
    /// The lines below the drawing.
    pub(super) caption: Vec<String>,
}

/// A number, or an index, and its place along an axis in pixels.
struct Mark {
    label: String,
    at: usize,
}

/// Returns the maximum numbers of rows and columns of blocks for a matrix, chosen so that nearly all blocks have equal
/// numbers of elements.
pub(super) fn most_blocks(size: (usize, usize)) -> (usize, usize) {
    let most = |n: usize| n.div_ceil(n.div_ceil(MAX_BLOCKS).max(1));
    (most(size.0), most(size.1))
}

/// Draws blocks of a matrix of `size` rows and columns, with a bar of the colors of the scale.
pub(super) fn heat_map(blocks: &Blocks, scale: Scale, size: (usize, usize), text: &Text) -> Image {
    let &Blocks { row_count, column_count, .. } = blocks;
    let side = LEAST_WIDTH.div_ceil(column_count).min(MAX_BLOCKS / row_count).max(1);
    let (block_width, block_height) =
        (side.max(LEAST_SIDE.div_ceil(column_count)), side.max(LEAST_SIDE.div_ceil(row_count)));
    let (width, height) = (column_count * block_width, row_count * block_height);
    let place = |block_count: usize, n: usize, block_side: usize| {
        move |index: f64| part_of(index as u64, n as u64, block_count) * block_side + block_side / 2
    };
    let last = |n: usize| (n - 1) as f64;
    let label_width = text_width(&(size.1 - 1).to_string());
    let columns =
        marks(0., last(size.1), width / (label_width + 36), 1., place(column_count, size.1, block_width));
    let rows = marks(0., last(size.0), height / 60, 1., place(row_count, size.0, block_height));
    let (low, high) = scale.limits();
    let middle = matches!(scale, Scale::Signed(_)).then_some((0.5, 0.));
    let ends = if low == high { vec![(0.5, low)] } else { vec![(0., high), (1., low)] };
    let limits: Vec<(f64, String)> =
        ends.into_iter().chain(middle).map(|(at, number)| (at, short(number))).collect();
    let limits_width = limits.iter().map(|(_, label)| text_width(label)).max().unwrap_or_default();
    let bar_x = width + 28;
    let room = (bar_x + COLOR_BAR_WIDTH + TICK + limits_width, height);

    let (mut image, (x, y)) = framed((width, height), room, text, &columns, &rows);
    for (i, &number) in blocks.numbers.iter().enumerate() {
        let at = (x + i % column_count * block_width, y + i / column_count * block_height);
        image.fill(at, (block_width, block_height), scale.color(number));
    }
    image.frame((x + bar_x, y), (COLOR_BAR_WIDTH, height));
    for row in 0..height {
        let part = row as f64 / (height - 1) as f64;
        image.fill((x + bar_x, y + row), (COLOR_BAR_WIDTH, 1), scale.color(high * (1. - part) + low * part));
    }
    for (part, label) in limits {
        let top = y + (part * (height - CHARACTER_HEIGHT) as f64) as usize;
        image.draw_text((x + bar_x + COLOR_BAR_WIDTH + TICK, top), &label);
    }
    image
}

/// Draws the counts of bins of equal width between two numbers.
pub(super) fn histogram(counts: &[u64], (min, max): (f64, f64), text: &Text) -> Image {
    let (width, height) = HISTOGRAM_SIZE;
    // If all elements are equal, they are in the last bin.
    let counts = if min == max { counts.last().map_or(counts, std::slice::from_ref) } else { counts };
    let most = counts.iter().copied().max().unwrap_or_default().max(1) as f64;
    // The difference of halves cannot overflow.
    let place = |number: f64| (number / 2. - min / 2.) / (max / 2. - min / 2.);
    let numbers = if min == max {
        vec![Mark { label: short(min), at: width / 2 }]
    } else {
        marks(min, max, 6, 0., |number| (place(number) * width as f64) as usize)
    };
    let amounts = marks(0., most, 6, 1., |count| ((1. - count / most) * height as f64) as usize);
    let (mut image, (x, y)) = framed((width, height), (width, height), text, &numbers, &amounts);
    for (bin, &count) in counts.iter().enumerate() {
        let (left, right) = (bin * width / counts.len(), (bin + 1) * width / counts.len());
        // Rounded up, so that a bin that is not empty has a visible bar.
        let bar = (count as f64 / most * height as f64).ceil() as usize;
        image.fill((x + left, y + height - bar), (right - left - 1, bar), BAR_COLOR);
    }
    image
}

/// Creates an image with a frame for a drawing, the marks of its axes, and text. `size` is the size of the drawing, and
/// `room` includes what is beside it. Also returns the place of the drawing.
fn framed(
    size: (usize, usize),
    room: (usize, usize),
    text: &Text,
    columns: &[Mark],
    rows: &[Mark],
) -> (Image, (usize, usize)) {
    let left = MARGIN + rows.iter().map(|mark| text_width(&mark.label)).max().unwrap_or_default() + TICK + 4;
    // The last label below can extend beyond the drawing by half its width.
    let beyond = columns.iter().map(|mark| mark.at + text_width(&mark.label) / 2).max().unwrap_or_default();
    let width = left + room.0.max(beyond).max(LEAST_WIDTH) + MARGIN;
    let line_length = (width - 2 * MARGIN) / CHARACTER_WIDTH;
    let wrapped = |line| wrapped(&drawable(line), line_length);
    let title = wrapped(&text.title);
    let caption: Vec<String> = text.caption.iter().flat_map(|line| wrapped(line)).collect();
    let top = MARGIN + title.len() * LINE_HEIGHT + 8;
    let below = top + room.1 + TICK + 4;
    let height = below + LINE_HEIGHT + 8 + caption.len() * LINE_HEIGHT + MARGIN - 8;

    let mut image = Image::new(width, height);
    for (i, line) in title.iter().enumerate() {
        image.draw_text((MARGIN, MARGIN + i * LINE_HEIGHT), line);
    }
    for (i, line) in caption.iter().enumerate() {
        image.draw_text((MARGIN, below + LINE_HEIGHT + 8 + i * LINE_HEIGHT), line);
    }
    image.frame((left, top), size);
    for Mark { label, at } in columns {
        image.fill((left + at, top + size.1 + 1), (1, TICK), BLACK);
        image.draw_text(((left + at).saturating_sub(text_width(label) / 2), below), label);
    }
    for Mark { label, at } in rows {
        image.fill((left - 1 - TICK, top + at), (TICK, 1), BLACK);
        let x = left - TICK - 4 - text_width(label);
        image.draw_text((x, (top + at).saturating_sub(CHARACTER_HEIGHT / 2)), label);
    }
    (image, (left, top))
}

/// Returns about `most` marks at round numbers from `low` to `high`. Neighbors differ by at least `least_step`.
fn marks(low: f64, high: f64, most: usize, least_step: f64, place: impl Fn(f64) -> usize) -> Vec<Mark> {
    let most = most.max(1) as f64;
    let rough = (high / most - low / most).max(least_step);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1., 2., 5., 10.].map(|digit| digit * power).into_iter().find(|&step| step >= rough * 0.999);
    let step = step.filter(|step| step.is_normal()).unwrap_or(f64::MAX);
    let first = (low / step).ceil();
    // Adding zero makes a negative zero positive.
    let numbers = (0..=most as usize).map(|i| (first + i as f64) * step + 0.);
    numbers
        .take_while(|&number| number <= high)
        .map(|number| Mark { label: short(number), at: place(number) })
        .collect()
}

/// Breaks a line at spaces. A word that is longer than a line is broken too.
fn wrapped(line: &str, length: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest: Vec<char> = line.chars().collect();
    while rest.len() > length {
        let space = rest.iter().take(length + 1).collect::<Vec<_>>();
        let space = space.into_iter().rposition(|&c| c == ' ').filter(|&at| at > 0);
        let tail = rest.split_off(space.unwrap_or(length));
        lines.push(rest.into_iter().collect());
        rest = tail.into_iter().skip_while(|&c| c == ' ').collect();
    }
    lines.push(rest.into_iter().collect());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_at_round_numbers() {
        let labels = |low, high, most, least| -> Vec<String> {
            marks(low, high, most, least, |_| 0).into_iter().map(|mark| mark.label).collect()
        };
        assert_eq!(labels(0., 99., 5, 1.), ["0", "20", "40", "60", "80"]);
        assert_eq!(labels(0., 2., 9, 1.), ["0", "1", "2"]);
        assert_eq!(labels(-0.31, 0.3, 6, 0.), ["-0.2", "0", "0.2"]);
        assert_eq!(labels(-f64::MAX, f64::MAX, 2, 0.), ["-1.7977e308", "0", "1.7977e308"]);
    }

    #[test]
    fn lines_are_broken_at_spaces_or_where_they_are_full() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrapped("", 3), [""]);
    }

    #[test]
    fn blocks_of_large_matrices_have_equal_numbers_of_elements() {
        assert_eq!(
            [(5000, 3000), (1024, 1), (1025, 7)].map(most_blocks),
            [(1000, 1000), (1024, 1), (513, 7)]
        );
    }
}
