//! Images as PNG files.

use std::io::{self, Write};

use png::{BitDepth, ColorType, Encoder};

use super::raster::Image;

/// Writes an image. The description is text that programs show beside it.
pub(super) fn write(image: &Image, description: &str, out: &mut impl Write) -> io::Result<()> {
    let side = |pixels: usize| u32::try_from(pixels).map_err(|_| io::ErrorKind::InvalidInput);
    let mut encoder = Encoder::new(out, side(image.width)?, side(image.height)?);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    // An iTXt chunk is UTF-8, as names are. A tEXt chunk is Latin-1.
    encoder.add_itxt_chunk("Description".to_owned(), description.to_owned())?;
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&image.bytes)?;
    Ok(writer.finish()?)
}
