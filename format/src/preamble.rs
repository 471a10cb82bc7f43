//! The first 16 bytes of every metadata file: magic, version, reserved.

use crate::{Error, Result, Rule};

/// The format version that this crate writes. It reads no other.
pub const VERSION: u32 = 1;

pub(crate) fn preamble(magic: [u8; 8]) -> Vec<u8> {
    [&magic[..], &VERSION.to_le_bytes(), &[0; 4]].concat()
}

/// Checks the version and the four reserved bytes after it, which are at `offset` (F-3).
pub(crate) fn check_version(preamble: &[u8], offset: usize) -> Result<()> {
    let field = |at: usize| preamble.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
    match (field(offset), field(offset.saturating_add(4))) {
        (Some(VERSION), Some(0)) => Ok(()),
        (version, flags) => Err(Error::new(
            Rule::Version,
            format!(
                "format version {} with flags {}; this is version {VERSION}, and a newer stridemap is needed",
                version.unwrap_or_default(),
                flags.unwrap_or_default()
            ),
        )
        .at(offset as u64)),
    }
}

/// Checks a preamble's magic and returns the bytes after the preamble. [`check_version`] is for later, once the bytes
/// are known to be undamaged: a damaged file is not a newer one.
pub(crate) fn strip_preamble<'a>(bytes: &'a [u8], magic: &[u8; 8], frame: Rule) -> Result<&'a [u8]> {
    if !bytes.starts_with(magic) {
        return Err(Error::new(frame, "another magic").at(0));
    }
    bytes.get(16..).ok_or_else(|| Error::new(frame, "cut short").at(8))
}

/// Takes `N` bytes off the front, for a little-endian integer.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (field, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*field)
}
