//! Images of figures, with axes and captions, drawn by plotters.

mod heat_map;
mod histogram;
mod letters;
mod lines;
mod png;

use std::io::{self, Write};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use super::figure::{Drawing, Figure, Panel};
use super::grid::LEAST_WIDTH;
use super::surface::Surface;
use letters::Lettered;

/// The font of the text in images, so that no font of the system is needed.
const FONT: &[u8] = include_bytes!("../roboto/Roboto-Regular-latin.ttf");

/// The name of the font here, and in an SVG image the font of the program that shows it.
const FONT_FAMILY: &str = "sans-serif";

const FONT_SIZE: u32 = 18;

/// About the width of a character in pixels.
const CHARACTER_WIDTH: usize = 9;

/// The size of a drawing that is not a heat map.
const CHART_SIZE: (usize, usize) = (720, 360);

const MARGIN: usize = 16;
const LINE_HEIGHT: usize = 24;

/// The space between a drawing and the text above and below it.
const GAP: usize = 8;

/// The height of the labels below a drawing.
const LABEL_HEIGHT: usize = 30;

/// The width to the right of a heat map, for a bar of colors and its limits.
const RIGHT_OF_HEAT_MAP: usize = 176;

/// The width to the right of another drawing, for half of the last label.
const RIGHT_OF_OTHERS: usize = 72;

/// The maximum number of blocks along a side of a PNG image, and of an SVG image, in which each block is an element.
const MAX_BLOCKS: usize = 1024;
const MAX_SVG_BLOCKS: usize = 256;

/// The maximum width and height of a matrix that is the only one, in pixels.
const MAX_SIDE: usize = 1024;

/// The maximum number of drawings in a row.
const MAX_COLUMNS: usize = 4;

type Area<B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Returns what an image of several drawings has room for.
pub(super) fn surface(panel_count: usize, is_svg: bool) -> Surface {
    let most = if is_svg { MAX_SVG_BLOCKS } else { MAX_BLOCKS };
    let max_side = if panel_count > 1 { LEAST_WIDTH } else { MAX_SIDE };
    Surface::Image { most_blocks: most / column_count(panel_count), max_side }
}

/// Returns how many drawings are in a row.
fn column_count(panel_count: usize) -> usize {
    let square = (1..).find(|side| side * side >= panel_count).unwrap_or(1);
    if panel_count <= 3 { panel_count.max(1) } else { square.min(MAX_COLUMNS) }
}

/// Writes the figure. Returns the width and the height in pixels.
pub(super) fn write(figure: &Figure, is_svg: bool, out: &mut impl Write) -> io::Result<(u32, u32)> {
    let (width, height) = size(figure);
    if is_svg {
        let mut text = String::new();
        draw(figure, SVGBackend::with_string(&mut text, (width, height)))?;
        out.write_all(text.as_bytes())?;
    } else {
        let mut pixels = vec![0; width as usize * height as usize * 3];
        let bitmap = Lettered::new(BitMapBackend::with_buffer(&mut pixels, (width, height)), FONT);
        draw(figure, bitmap.ok_or_else(|| io::Error::other("the font cannot be read"))?)?;
        png::write(&pixels, (width, height), figure.text(), out)?;
    }
    Ok((width, height))
}

/// Returns the widths of the columns of drawings, and the heights of the rows, in pixels.
fn layout(figure: &Figure) -> (Vec<usize>, Vec<usize>) {
    let count = column_count(figure.panels.len());
    let (mut widths, mut heights) = (vec![0; count], Vec::new());
    for row in figure.panels.chunks(count) {
        for (width, panel) in widths.iter_mut().zip(row) {
            *width = panel.width().max(*width);
        }
        heights.push(row.iter().map(Panel::height).max().unwrap_or_default());
    }
    (widths, heights)
}

fn size(figure: &Figure) -> (u32, u32) {
    let (widths, heights) = layout(figure);
    let note_height = if figure.note.is_some() { LINE_HEIGHT + MARGIN } else { 0 };
    (widths.iter().sum::<usize>() as u32, (heights.iter().sum::<usize>() + note_height) as u32)
}

fn draw(figure: &Figure, backend: impl DrawingBackend) -> io::Result<()> {
    let _ = register_font(FONT_FAMILY, FontStyle::Normal, FONT);
    let root = backend.into_drawing_area();
    draw_panels(figure, &root).map_err(|e| io::Error::other(e.to_string()))
}

fn draw_panels<B: DrawingBackend>(figure: &Figure, root: &Area<B>) -> Drawn<B> {
    root.fill(&WHITE)?;
    let (widths, heights) = layout(figure);
    let mut top = 0;
    for (row, height) in figure.panels.chunks(widths.len()).zip(heights) {
        let mut left = 0;
        for (panel, &width) in row.iter().zip(&widths) {
            let area = root.clone().shrink((left as u32, top as u32), (width as u32, height as u32));
            panel.draw(&area)?;
            left += width;
        }
        top += height;
    }
    draw_text(&figure.note.map(str::to_owned).into_iter().collect::<Vec<_>>(), top, root)?;
    root.present()
}

impl Panel {
    fn width(&self) -> usize {
        MARGIN
            + self.drawing.label_width()
            + self.drawing.size().0.max(LEAST_WIDTH)
            + self.drawing.right_width()
    }

    fn height(&self) -> usize {
        let lines =
            self.title_lines(self.most_characters()).len() + self.caption_lines(self.most_characters()).len();
        2 * MARGIN + 2 * GAP + LABEL_HEIGHT + self.drawing.size().1 + lines * LINE_HEIGHT
    }

    /// Returns how many characters fit in a line.
    fn most_characters(&self) -> usize {
        (self.width() - 2 * MARGIN) / CHARACTER_WIDTH
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        let ((width, height), label_width) = (self.drawing.size(), self.drawing.label_width());
        let title = self.title_lines(self.most_characters());
        let top = MARGIN + title.len() * LINE_HEIGHT + GAP;
        draw_text(&title, MARGIN, area)?;
        draw_text(&self.caption_lines(self.most_characters()), top + height + LABEL_HEIGHT + GAP, area)?;
        // The drawing, and its labels at the left and below.
        let size = ((label_width + width) as u32, (height + LABEL_HEIGHT) as u32);
        let drawing = area.clone().shrink((MARGIN as u32, top as u32), size);
        match &self.drawing {
            Drawing::HeatMap(map) => heat_map::draw(map, (MARGIN, top), &drawing, area),
            Drawing::Histogram(histogram) => histogram::draw(histogram, &drawing),
            Drawing::Lines(lines) => lines::draw(lines, &drawing),
        }
    }
}

fn draw_text<B: DrawingBackend>(lines: &[String], top: usize, area: &Area<B>) -> Drawn<B> {
    let mut rows = lines.iter().zip((top..).step_by(LINE_HEIGHT));
    rows.try_for_each(|(line, y)| area.draw_text(line, &font(), (MARGIN as i32, y as i32)))
}

impl Drawing {
    /// Returns the width and the height without labels.
    fn size(&self) -> (usize, usize) {
        match self {
            Drawing::HeatMap(map) => heat_map::size(map),
            Drawing::Histogram(_) | Drawing::Lines(_) => CHART_SIZE,
        }
    }

    /// Returns the width at the right.
    fn right_width(&self) -> usize {
        match self {
            Drawing::HeatMap(_) => RIGHT_OF_HEAT_MAP,
            Drawing::Histogram(_) | Drawing::Lines(_) => RIGHT_OF_OTHERS,
        }
    }

    /// Returns the width of the labels at the left.
    fn label_width(&self) -> usize {
        let digits = match self {
            Drawing::HeatMap(map) => heat_map::index_width(map.size.0),
            Drawing::Histogram(_) | Drawing::Lines(_) => 10 * CHARACTER_WIDTH,
        };
        digits + 14
    }
}

fn font() -> TextStyle<'static> {
    (FONT_FAMILY, FONT_SIZE).into_text_style(&(1, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_drawings_are_in_one_row() {
        assert_eq!([1, 2, 3, 4, 5, 9, 10, 16, 40].map(column_count), [1, 2, 3, 2, 3, 3, 4, 4, 4]);
    }

    #[test]
    fn font_has_the_characters_of_titles_and_captions() {
        let drawn = |text: &str| {
            let mut pixels = vec![0; 40 * 40 * 3];
            register_font(FONT_FAMILY, FontStyle::Normal, FONT).ok().unwrap();
            let bitmap = BitMapBackend::with_buffer(&mut pixels, (40, 40));
            let area = Lettered::new(bitmap, FONT).unwrap().into_drawing_area();
            area.fill(&WHITE).unwrap();
            area.draw_text(text, &font(), (4, 4)).unwrap();
            drop(area);
            pixels
        };
        let all: Vec<char> = (' '..='~').chain("±×é…".chars()).chain(['重']).collect();
        let different: std::collections::BTreeSet<_> = all.iter().map(|c| drawn(&c.to_string())).collect();
        assert_eq!(different.len(), all.len());
    }
}
