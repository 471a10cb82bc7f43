//! The magic and the version: the first 16 bytes of `FORMAT`, and of a manifest. In `SPEC.md`, the preamble of a
//! manifest also includes the length of the body.

use crate::{Error, Result, Rule};

/// The format version that this crate writes, and the only one that it reads.
pub const VERSION: u64 = 1;

pub(crate) fn preamble(magic: [u8; 8]) -> Vec<u8> {
    [magic, VERSION.to_le_bytes()].concat()
}

/// Checks the version, the second eight bytes of a file (F-3).
pub(crate) fn check_version(bytes: &[u8]) -> Result<()> {
    let version =
        bytes.get(8..).and_then(|rest| rest.first_chunk()).map(|version| u64::from_le_bytes(*version));
    if version == Some(VERSION) {
        return Ok(());
    }
    let detail = format!(
        "format version {}, but this stridemap reads only version {VERSION}; use a newer stridemap",
        version.unwrap_or_default()
    );
    Err(Error::new(Rule::Version, detail).at(8))
}

/// Checks a preamble's magic and returns the bytes after the preamble. Call [`check_version`] only after the digest
/// was verified, so that a damaged file is not reported as a newer version.
pub(crate) fn strip_preamble<'a>(bytes: &'a [u8], magic: &[u8; 8], rule: Rule) -> Result<&'a [u8]> {
    if !bytes.starts_with(magic) {
        return Err(Error::new(rule, "a different magic").at(0));
    }
    bytes.get(16..).ok_or_else(|| Error::new(rule, "truncated").at(8))
}

/// Takes `N` bytes off the front of `bytes`.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (field, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*field)
}
