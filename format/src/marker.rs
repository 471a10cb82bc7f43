use crate::preamble::{check_version, preamble};
use crate::{Digest, Error, Result, Rule, Uuid, digest};

const MAGIC: [u8; 8] = *b"\x89SMAP\r\n\x1a";

/// The content of `FORMAT`: what makes a directory a store.
///
/// The file is 48 bytes in every version, so that damage can be told from a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The store's identity.
    pub uuid: Uuid,
}

impl Marker {
    /// Bytes of the file.
    pub const LENGTH: usize = 48;

    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = preamble(MAGIC);
        bytes.extend(self.uuid);
        bytes.extend(digest(&bytes));
        bytes
    }

    /// Reads the file's bytes.
    ///
    /// # Errors
    /// [`Rule::MarkerMagic`] for another kind of file, [`Rule::MarkerDigest`] for a damaged one, [`Rule::Version`] for
    /// a whole one of another version.
    pub fn decode(bytes: &[u8]) -> Result<Marker> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::new(Rule::MarkerMagic, "FORMAT has another magic").at(0));
        }
        let damaged = || Error::new(Rule::MarkerDigest, "FORMAT is damaged").at(0);
        let fields: &[u8; Self::LENGTH] = bytes.try_into().map_err(|_| damaged())?;
        let (covered, stated): (&[u8], &[u8]) = fields.split_at(32);
        if digest(covered) != *stated {
            return Err(damaged());
        }
        check_version(covered, 8)?;
        let uuid = covered.last_chunk().ok_or_else(damaged)?;
        Ok(Marker { uuid: *uuid })
    }
}

const _: () = assert!(MAGIC.len() + 4 + 4 + size_of::<Uuid>() + size_of::<Digest>() == Marker::LENGTH);
