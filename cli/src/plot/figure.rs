//! Images of heat maps and histograms, with axes and a caption, drawn by plotters.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use crate::look::chart::short;
use crate::look::palette::Scale;
use crate::look::reduce::Blocks;
use crate::ui::shorten;

/// The font of the text in images, so that no font of the system is needed.
const FONT: &[u8] = include_bytes!("roboto/Roboto-Regular-latin.ttf");

/// The name of the font here, and in an SVG image the font of the program that shows it.
const FONT_FAMILY: &str = "sans-serif";

const FONT_SIZE: u32 = 18;

/// About the width of a character in pixels.
const CHARACTER_WIDTH: usize = 9;

/// The minimum width and height of a drawn matrix, in pixels.
const LEAST_SIDE: usize = 64;

/// The minimum width of a drawing, in pixels. A matrix is at least this wide, unless its square blocks would then be
/// more than `MAX_BLOCKS` pixels high together.
const LEAST_WIDTH: usize = 512;

/// The maximum number of blocks along a side of a PNG image.
const MAX_BLOCKS: usize = 1024;

/// The same for an SVG image, in which each block is an element.
const MAX_SVG_BLOCKS: usize = 256;

const HISTOGRAM_SIZE: (usize, usize) = (720, 360);
const BAR_COLOR: RGBColor = RGBColor(33, 102, 172);
const FRAME_COLOR: RGBColor = RGBColor(150, 150, 170);

const MARGIN: usize = 16;
const LINE_HEIGHT: usize = 24;

/// The height of the labels below a drawing.
const LABEL_HEIGHT: usize = 30;

/// The width to the right of a drawing: a bar of colors and its limits, or half of the last label.
const RIGHT_WIDTH: usize = 176;

const COLOR_BAR_WIDTH: i32 = 20;

/// A drawing, its title, and the lines below it.
pub(super) struct Figure<'a> {
    pub(super) title: String,
    pub(super) caption: Vec<String>,
    pub(super) drawing: Drawing<'a>,
}

pub(super) enum Drawing<'a> {
    /// Blocks of a matrix of `size` rows and columns.
    HeatMap { blocks: &'a Blocks, scale: Scale, size: (usize, usize) },
    /// Counts in bins of equal width between two numbers.
    Histogram { counts: &'a [u64], limits: (f64, f64) },
}

type Area<B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Returns the maximum numbers of rows and columns of blocks for a matrix, chosen so that nearly all blocks have equal
/// numbers of elements.
pub(super) fn most_blocks(size: (usize, usize), is_svg: bool) -> (usize, usize) {
    let limit = if is_svg { MAX_SVG_BLOCKS } else { MAX_BLOCKS };
    let most = |n: usize| n.div_ceil(n.div_ceil(limit).max(1));
    (most(size.0), most(size.1))
}

impl Figure<'_> {
    /// Returns the width and the height of the image in pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        let (width, height) = self.drawing.size();
        let below = LABEL_HEIGHT + 8 + self.caption.len() * LINE_HEIGHT;
        let width = MARGIN + self.drawing.label_width() + width.max(LEAST_WIDTH) + RIGHT_WIDTH;
        (width as u32, (2 * MARGIN + LINE_HEIGHT + 8 + height + below) as u32)
    }

    /// Returns the title and the caption.
    pub(super) fn text(&self) -> String {
        format!("{}\n{}", self.title, self.caption.join("\n"))
    }

    pub(super) fn draw(&self, backend: impl DrawingBackend) -> io::Result<()> {
        let _ = register_font(FONT_FAMILY, FontStyle::Normal, FONT);
        self.draw_on(&backend.into_drawing_area()).map_err(|e| io::Error::other(e.to_string()))
    }

    fn draw_on<B: DrawingBackend>(&self, root: &Area<B>) -> Drawn<B> {
        let ((width, height), label_width) = (self.drawing.size(), self.drawing.label_width());
        let top = MARGIN + LINE_HEIGHT + 8;
        root.fill(&WHITE)?;
        let most_characters = (self.size().0 as usize - 2 * MARGIN) / CHARACTER_WIDTH;
        let caption_top = top + height + LABEL_HEIGHT + 8;
        let rows = (0..).map(|i| caption_top + i * LINE_HEIGHT).zip(&self.caption);
        for (y, line) in rows.chain([(MARGIN, &self.title)]) {
            root.draw_text(&shorten(line, most_characters), &font(), (MARGIN as i32, y as i32))?;
        }
        let place = (MARGIN as i32, top as i32);
        let area = root.clone().shrink(place, ((label_width + width) as u32, (height + LABEL_HEIGHT) as u32));
        match self.drawing {
            Drawing::HeatMap { blocks, scale, size } => {
                let bar_x = place.0 + (label_width + width + 28) as i32;
                let bar_area = root.clone().shrink((bar_x, place.1), (150, height as u32));
                draw_scale(scale, height as i32, &bar_area)?;
                draw_heat_map(blocks, scale, size, &area)?;
                // What is outside of an area would be drawn on its edge.
                let bottom = place.1 + height as i32;
                for (left, right) in [
                    (place.0 + label_width as i32, place.0 + (label_width + width) as i32),
                    (bar_x, bar_x + COLOR_BAR_WIDTH),
                ] {
                    let corners = [(left - 1, place.1 - 1), (right, bottom)];
                    root.draw(&Rectangle::new(corners, FRAME_COLOR))?;
                }
            }
            Drawing::Histogram { counts, limits } => draw_histogram(counts, limits, &area)?,
        }
        root.present()
    }
}

impl Drawing<'_> {
    /// Returns the width and the height without labels.
    fn size(&self) -> (usize, usize) {
        let Drawing::HeatMap { blocks, .. } = self else { return HISTOGRAM_SIZE };
        let (width, height) = block_size(blocks);
        (blocks.column_count * width, blocks.row_count * height)
    }

    /// Returns the width of the labels at the left.
    fn label_width(&self) -> usize {
        let digits = match self {
            Drawing::HeatMap { size, .. } => index_width(size.0),
            Drawing::Histogram { .. } => 10 * CHARACTER_WIDTH,
        };
        digits + 14
    }
}

fn font() -> TextStyle<'static> {
    (FONT_FAMILY, FONT_SIZE).into_text_style(&(1, 1))
}

/// Returns the width of the last of `n` indices.
fn index_width(n: usize) -> usize {
    n.saturating_sub(1).to_string().len() * CHARACTER_WIDTH
}

/// Returns the width and the height of a block in pixels.
fn block_size(blocks: &Blocks) -> (usize, usize) {
    let (rows, columns) = (blocks.row_count, blocks.column_count);
    let side = LEAST_WIDTH.div_ceil(columns).min(MAX_BLOCKS / rows).max(1);
    (side.max(LEAST_SIDE.div_ceil(columns)), side.max(LEAST_SIDE.div_ceil(rows)))
}

fn rgb([red, green, blue]: [u8; 3]) -> RGBColor {
    RGBColor(red, green, blue)
}

fn draw_heat_map<B: DrawingBackend>(
    blocks: &Blocks,
    scale: Scale,
    (rows, columns): (usize, usize),
    area: &Area<B>,
) -> Drawn<B> {
    let (width, height) = block_size(blocks);
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, (index_width(rows) + 14) as u32)
        .set_label_area_size(LabelAreaPosition::Bottom, LABEL_HEIGHT as u32)
        .build_cartesian_2d(-0.5..columns as f64 - 0.5, rows as f64 - 0.5..-0.5)?;
    // Adding zero makes a negative zero positive.
    let index = |at: &f64| format!("{:.0}", at + 0.);
    let most_columns = blocks.column_count * width / (index_width(columns) + 36);
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(font())
        .x_labels(most_columns.clamp(1, columns))
        .y_labels((blocks.row_count * height / 60).clamp(1, rows))
        .x_label_formatter(&index)
        .y_label_formatter(&index)
        .draw()?;
    let area = chart.plotting_area().strip_coord_spec();
    let (width, height) = (width as i32, height as i32);
    for (i, &number) in blocks.numbers.iter().enumerate() {
        let (x, y) = ((i % blocks.column_count) as i32 * width, (i / blocks.column_count) as i32 * height);
        area.draw(&Rectangle::new([(x, y), (x + width, y + height)], rgb(scale.color(number)).filled()))?;
    }
    Ok(())
}

/// Draws a bar of the colors of a scale, with its limits.
fn draw_scale<B: DrawingBackend>(scale: Scale, height: i32, area: &Area<B>) -> Drawn<B> {
    const STEPS: i32 = 64;
    let (low, high) = scale.limits();
    for step in 0..STEPS {
        let part = f64::from(step) / f64::from(STEPS - 1);
        let color = rgb(scale.color(high * (1. - part) + low * part));
        let [top, bottom] = [step, step + 1].map(|step| step * height / STEPS);
        area.draw(&Rectangle::new([(0, top), (COLOR_BAR_WIDTH, bottom)], color.filled()))?;
    }
    let middle = matches!(scale, Scale::Signed(_)).then_some((0.5, 0.));
    let ends = if low == high { vec![(0.5, low)] } else { vec![(0., high), (1., low)] };
    for (part, number) in ends.into_iter().chain(middle) {
        let y = (part * f64::from(height - FONT_SIZE as i32)) as i32;
        area.draw_text(&short(number), &font(), (COLOR_BAR_WIDTH + 8, y))?;
    }
    Ok(())
}

fn draw_histogram<B: DrawingBackend>(counts: &[u64], (min, max): (f64, f64), area: &Area<B>) -> Drawn<B> {
    let is_constant = min == max;
    // If all elements are equal, they are in the last bin.
    let counts = if is_constant { counts.last().map_or(counts, std::slice::from_ref) } else { counts };
    let most = counts.iter().copied().max().unwrap_or_default().max(1);
    // The numbers of the axis have a range of at least 1, however large or small the elements are. The difference of
    // halves cannot overflow.
    let unit = 10f64.powf((max / 2. - min / 2.).log10().floor().clamp(-300., 307.));
    let range = if is_constant { -1. ..1. } else { min / unit..max / unit };
    let label = |at: &f64| if is_constant { short(min) } else { short(at * unit + 0.) };
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, (10 * CHARACTER_WIDTH + 14) as u32)
        .set_label_area_size(LabelAreaPosition::Bottom, LABEL_HEIGHT as u32)
        .build_cartesian_2d(range, 0. ..most as f64)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(font())
        .x_labels(if is_constant { 1 } else { 6 })
        .y_labels(most.saturating_add(1).min(6) as usize)
        .x_label_formatter(&label)
        .y_label_formatter(&|count| short(*count))
        .draw()?;
    let area = chart.plotting_area().strip_coord_spec();
    let (width, height) = HISTOGRAM_SIZE;
    for (bin, &count) in counts.iter().enumerate() {
        let [left, right] = [bin, bin + 1].map(|bin| (bin * width / counts.len()) as i32);
        // Rounded up, so that a bin that is not empty has a visible bar.
        let bar = (count as f64 / most as f64 * height as f64).ceil() as i32;
        if bar > 0 {
            let corners = [(left, height as i32 - bar), (right - 1, height as i32)];
            area.draw(&Rectangle::new(corners, BAR_COLOR.filled()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_large_matrices_have_equal_numbers_of_elements() {
        assert_eq!(
            [(5000, 3000), (1024, 1), (1025, 7)].map(|size| most_blocks(size, false)),
            [(1000, 1000), (1024, 1), (513, 7)]
        );
        assert_eq!(most_blocks((5000, 250), true), (250, 250));
    }

    #[test]
    fn font_has_the_characters_of_titles_and_captions() {
        let drawn = |text: &str| {
            let mut pixels = vec![0; 40 * 40 * 3];
            register_font(FONT_FAMILY, FontStyle::Normal, FONT).ok().unwrap();
            let area = BitMapBackend::with_buffer(&mut pixels, (40, 40)).into_drawing_area();
            area.fill(&WHITE).unwrap();
            area.draw_text(text, &font(), (4, 4)).unwrap();
            drop(area);
            pixels
        };
        let all: Vec<char> = (' '..='~').chain("±×é…".chars()).chain(['重']).collect();
        let different: std::collections::BTreeSet<_> = all.iter().map(|c| drawn(&c.to_string())).collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn numbers_of_any_magnitude_are_drawn() {
        for limits in [
            (-f64::MAX, f64::MAX),
            (0., 5e-324),
            (1e16, 1e16 + 2.),
            (1e300, 1e300),
            (-1e-20, 3e-20),
            (f64::MIN_POSITIVE, 1e308),
        ] {
            let figure = Figure {
                title: String::new(),
                caption: Vec::new(),
                drawing: Drawing::Histogram { counts: &[1, 0, u64::MAX], limits },
            };
            let mut text = String::new();
            figure.draw(SVGBackend::with_string(&mut text, figure.size())).unwrap();
            let label = if limits.0 == limits.1 { short(limits.0) } else { "0".to_owned() };
            assert!(text.contains(&label) && text.contains("#2166AC"), "{limits:?} {text}");
        }
    }
}
