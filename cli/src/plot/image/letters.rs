//! Text in bitmaps. plotters draws each letter without the space that the font has before it, and at whole pixels, so that a
//! decimal point touches the digit before it.

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// A bitmap whose text is drawn here, in one font. The text is horizontal.
pub(super) struct Lettered<B> {
    bitmap: B,
    font: FontRef<'static>,
}

type Drawn<B> = Result<(), DrawingErrorKind<<B as DrawingBackend>::ErrorType>>;

impl<B: DrawingBackend> Lettered<B> {
    /// Returns `None` if these are not the bytes of a font.
    pub(super) fn new(bitmap: B, font: &'static [u8]) -> Option<Self> {
        Some(Lettered { bitmap, font: FontRef::try_from_slice(font).ok()? })
    }

    fn draw_letters(&mut self, text: &str, size: f32, color: BackendColor, (x, y): (f32, f32)) -> Drawn<B> {
        let (columns, rows) = self.bitmap.get_size();
        let font = self.font.as_scaled(PxScale::from(size));
        let (mut at, mut previous) = (x, None);
        for letter in text.chars() {
            let id = font.glyph_id(letter);
            at += previous.map_or(0., |previous| font.kern(previous, id));
            if let Some(outline) = font.outline_glyph(id.with_scale_and_position(font.scale(), point(at, y)))
            {
                let corner = outline.px_bounds().min;
                let mut drawn = Ok(());
                let bitmap = &mut self.bitmap;
                outline.draw(|right, down, coverage| {
                    let (x, y) = (corner.x as i32 + right as i32, corner.y as i32 + down as i32);
                    let is_inside = x >= 0 && y >= 0 && (x as u32) < columns && (y as u32) < rows;
                    if is_inside && drawn.is_ok() {
                        let alpha = color.alpha * f64::from(coverage.min(1.));
                        drawn = bitmap.draw_pixel((x, y), BackendColor { alpha, ..color });
                    }
                });
                drawn?;
            }
            at += font.h_advance(id);
            previous = Some(id);
        }
        Ok(())
    }
}

impl<B: DrawingBackend> DrawingBackend for Lettered<B> {
    type ErrorType = B::ErrorType;

    fn get_size(&self) -> (u32, u32) {
        self.bitmap.get_size()
    }

    fn ensure_prepared(&mut self) -> Drawn<B> {
        self.bitmap.ensure_prepared()
    }

    fn present(&mut self) -> Drawn<B> {
        self.bitmap.present()
    }

    fn draw_pixel(&mut self, at: BackendCoord, color: BackendColor) -> Drawn<B> {
        self.bitmap.draw_pixel(at, color)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn<B> {
        self.bitmap.draw_line(from, to, style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn<B> {
        self.bitmap.draw_rect(from, to, style, fill)
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, (x, y): BackendCoord) -> Drawn<B> {
        let box_of_text = style.layout_box(text);
        let (low, high) = box_of_text.map_err(|error| DrawingErrorKind::FontError(Box::new(error)))?;
        let (width, height) = ((high.0 - low.0) as f32, (high.1 - low.1) as f32);
        let left = match style.anchor().h_pos {
            HPos::Left => 0.,
            HPos::Center => width / 2.,
            HPos::Right => width,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0.,
            VPos::Center => height / 2.,
            VPos::Bottom => height,
        };
        // The line below the letters is where plotters has it.
        let size = style.size() as f32;
        let at = (x as f32 - left, (y as f32 - top + size / 2.).trunc());
        self.draw_letters(text, size, style.color(), at)
    }
}

#[cfg(test)]
mod tests {
    use plotters::prelude::*;
    use plotters::style::register_font;

    use super::*;
    use crate::plot::image::{FONT, FONT_FAMILY, font};

    /// Returns the runs of columns that have ink.
    fn runs(text: &str) -> usize {
        const SIDE: usize = 120;
        let mut pixels = vec![0; SIDE * SIDE * 3];
        register_font(FONT_FAMILY, FontStyle::Normal, FONT).ok().unwrap();
        let bitmap = BitMapBackend::with_buffer(&mut pixels, (SIDE as u32, SIDE as u32));
        let area = Lettered::new(bitmap, FONT).unwrap().into_drawing_area();
        area.fill(&WHITE).unwrap();
        area.draw_text(text, &font(), (10, 50)).unwrap();
        drop(area);
        let has_ink = |column: &usize| (0..SIDE).any(|row| pixels[(row * SIDE + column) * 3] < 160);
        let columns: Vec<bool> = (0..SIDE).map(|column| has_ink(&column)).collect();
        columns.windows(2).filter(|pair| !pair[0] && pair[1]).count()
    }

    #[test]
    fn decimal_points_touch_no_digit() {
        for text in ["2.5912", "0.27117", "1.5", "0.1"] {
            assert_eq!(runs(text), text.len(), "{text}");
        }
    }
}
