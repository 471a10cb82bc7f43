//! Images as PNG files.

use std::io::{self, Write};

use png::{BitDepth, ColorType, Encoder};

/// Writes pixels of three bytes. The description is text that programs show beside the image.
pub(super) fn write(
    pixels: &[u8],
    (width, height): (u32, u32),
    description: String,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut encoder = Encoder::new(out, width, height);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    // An iTXt chunk is UTF-8, as names are. A tEXt chunk is Latin-1.
    encoder.add_itxt_chunk("Description".to_owned(), description)?;
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    Ok(writer.finish()?)
}
