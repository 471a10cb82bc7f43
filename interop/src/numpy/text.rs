//! Texts: string arrays without dimensions.

use super::dtype::ParsedDescr;
use super::header::{ArrayHeader, Descriptor};

/// How the bytes of a text are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextEncoding {
    /// `S`: bytes, which must be UTF-8.
    Bytes,
    /// `U`: four bytes for each character.
    Characters { is_big_endian: bool },
}

impl TextEncoding {
    /// Returns how to decode an array, and its length in bytes. Returns `None` if it is not a text.
    pub(super) fn of(header: &ArrayHeader<'_>) -> Option<(Self, u64)> {
        let Descriptor::One(descr) = header.descr else { return None };
        let code = descr.trim_start_matches(['<', '>', '=', '|']);
        let encoding = match code.chars().next() {
            _ if !header.size.is_empty() => return None,
            Some('S' | 'a') => TextEncoding::Bytes,
            Some('U') => TextEncoding::Characters { is_big_endian: descr.starts_with('>') },
            _ => return None,
        };
        Some((encoding, ParsedDescr::item_bytes(descr)?))
    }

    /// Decodes a text. NULs at the end are left out, as in NumPy.
    pub(super) fn decode(self, bytes: Vec<u8>) -> Result<String, String> {
        let mut text = match self {
            TextEncoding::Bytes => {
                String::from_utf8(bytes).map_err(|e| format!("the text is not UTF-8: {e}"))?
            }
            TextEncoding::Characters { is_big_endian } => {
                let (units, _) = bytes.as_chunks();
                let number = if is_big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
                let text: Option<String> = units.iter().map(|&unit| char::from_u32(number(unit))).collect();
                text.ok_or("the text has a number that is not a character")?
            }
        };
        text.truncate(text.trim_end_matches('\0').len());
        Ok(text)
    }
}
