//! PNG files.

use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::Path;

/// A decoded image.
pub(crate) struct Decoded {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) description: String,
    pub(crate) colors: Vec<[u8; 3]>,
}

impl Decoded {
    pub(crate) fn open(path: impl AsRef<Path>) -> Self {
        let file = BufReader::new(File::open(path).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((frame.color_type, frame.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        let description = &reader.info().utf8_text[0];
        assert_eq!(description.keyword, "Description");
        Decoded {
            width: frame.width as usize,
            height: frame.height as usize,
            description: description.get_text().unwrap(),
            colors: bytes.chunks_exact(3).map(|color| [color[0], color[1], color[2]]).collect(),
        }
    }

    /// Returns whether a part of the image has dark pixels.
    pub(crate) fn has_text(&self, columns: Range<usize>, mut rows: Range<usize>) -> bool {
        let is_dark = |row: usize| {
            let mut colors = self.colors[row * self.width..][columns.clone()].iter();
            colors.any(|color| color.iter().all(|&part| part < 100))
        };
        rows.any(is_dark)
    }

    /// Returns the columns and the rows from the first to the last pixel of a color.
    pub(crate) fn bounds(&self, color: [u8; 3]) -> [(usize, usize); 2] {
        let at = (0..self.colors.len()).filter(|&at| self.colors[at] == color);
        let (columns, rows): (Vec<usize>, Vec<usize>) =
            at.map(|at| (at % self.width, at / self.width)).unzip();
        [columns, rows].map(|at| (*at.iter().min().unwrap(), *at.iter().max().unwrap()))
    }
}
