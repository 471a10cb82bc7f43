//! The marker of a store, `FORMAT`.

use crate::preamble::{check_version, preamble};
use crate::{Digest, Error, Result, Rule, Uuid, digest};

const MAGIC: [u8; 8] = *b"\x89SMAP\r\n\x1a";

/// The content of `FORMAT`, the file that makes a directory a store.
///
/// The file is 48 bytes in every version, so that damage can be distinguished from a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The store's identity.
    pub uuid: Uuid,
}

impl Marker {
    /// The length of the file in bytes.
    pub const LENGTH: usize = 48;

    /// Returns the bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = preamble(MAGIC);
        bytes.extend(self.uuid);
        bytes.extend(digest(&bytes));
        bytes
    }

    /// Decodes the bytes of the file.
    ///
    /// # Errors
    /// [`Rule::MarkerMagic`] for a different kind of file, [`Rule::MarkerDigest`] for a damaged marker,
    /// [`Rule::Version`] for an undamaged marker of a different version.
    pub fn decode(bytes: &[u8]) -> Result<Marker> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::new(Rule::MarkerMagic, "FORMAT has a different magic").at(0));
        }
        let damaged = || Error::new(Rule::MarkerDigest, "FORMAT is damaged").at(0);
        let fields: &[u8; Self::LENGTH] = bytes.try_into().map_err(|_| damaged())?;
        let (covered, stated): (&[u8], &[u8]) = fields.split_at(32);
        if digest(covered) != *stated {
            return Err(damaged());
        }
        check_version(covered)?;
        let uuid = covered.last_chunk().ok_or_else(damaged)?;
        Ok(Marker { uuid: *uuid })
    }
}

const _: () = assert!(MAGIC.len() + 8 + size_of::<Uuid>() + size_of::<Digest>() == Marker::LENGTH);
