//! `HEAD`, the only object of a remote that is ever replaced.

use super::{ObjectName, RemoteManifest, manifest_path};
use crate::limits::MAX_REMOTE_MANIFEST_BYTES;
use crate::preamble::{check_version, preamble, take};
use crate::{Digest, Error, Result, Rule, Uuid, digest};

const MAGIC: [u8; 8] = *b"SMAPHEAD";

/// The content of `HEAD`: which remote manifest is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The identity of the store, which is also in `FORMAT`.
    pub uuid: Uuid,
    /// The generation of the store.
    pub generation: u64,
    /// The BLAKE3 digest of the remote manifest.
    pub manifest: ObjectName,
    /// The length of the remote manifest in bytes.
    pub manifest_length_bytes: u64,
}

impl Head {
    /// The length of the object in bytes.
    pub const LENGTH: usize = 96;

    /// Returns where the remote manifest is, relative to the URL of the remote.
    #[must_use]
    pub fn manifest_path(&self) -> String {
        manifest_path(self.generation, &self.manifest)
    }

    /// Returns the bytes of the object.
    ///
    /// # Errors
    /// [`Rule::RemoteGeneration`] for generation 0; [`Rule::RemoteFrame`] for a remote manifest of an invalid length.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check()?;
        let mut bytes = preamble(MAGIC);
        bytes.extend(self.uuid);
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.manifest);
        bytes.extend(self.manifest_length_bytes.to_le_bytes());
        bytes.extend(digest(&bytes));
        Ok(bytes)
    }

    /// Decodes the bytes of the object. `uuid` is that of `FORMAT`, if it is known.
    ///
    /// # Errors
    /// In this order: [`Rule::HeadMagic`] for a different kind of object, [`Rule::HeadDigest`] for a damaged one,
    /// [`Rule::Version`] for one of a different version, [`Rule::RemoteUuid`], [`Rule::RemoteGeneration`],
    /// [`Rule::RemoteFrame`].
    pub fn decode(bytes: &[u8], uuid: Option<Uuid>) -> Result<Self> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::new(Rule::HeadMagic, "HEAD has a different magic").at(0));
        }
        let damaged = || Error::new(Rule::HeadDigest, "HEAD is damaged").at(0);
        let fields: &[u8; Self::LENGTH] = bytes.try_into().map_err(|_| damaged())?;
        let (covered, stated) = fields.split_last_chunk::<16>().ok_or_else(damaged)?;
        if digest(covered) != *stated {
            return Err(damaged());
        }
        check_version(covered)?;
        let head = Self::decode_fields(covered).ok_or_else(damaged)?;
        if uuid.is_some_and(|uuid| uuid != head.uuid) {
            return Err(Error::new(Rule::RemoteUuid, "HEAD of a different store").at(16));
        }
        head.check()?;
        Ok(head)
    }

    fn decode_fields(covered: &[u8]) -> Option<Self> {
        let mut rest = covered.get(16..)?;
        let uuid = take(&mut rest)?;
        let generation = u64::from_le_bytes(take(&mut rest)?);
        let manifest = take(&mut rest)?;
        let manifest_length_bytes = u64::from_le_bytes(take(&mut rest)?);
        Some(Head { uuid, generation, manifest, manifest_length_bytes })
    }

    /// Decodes the remote manifest, whose length and BLAKE3 digest were checked, and checks that it is of the generation
    /// of this head.
    ///
    /// # Errors
    /// Those of [`RemoteManifest::decode`], and [`Rule::RemoteGeneration`].
    pub fn decode_manifest(&self, bytes: &[u8]) -> Result<RemoteManifest> {
        let manifest = RemoteManifest::decode(bytes, self.uuid)?;
        if manifest.generation != self.generation {
            let detail = format!(
                "a remote manifest of generation {}, and HEAD of generation {}",
                manifest.generation, self.generation
            );
            return Err(Error::new(Rule::RemoteGeneration, detail).at(24));
        }
        Ok(manifest)
    }

    fn check(&self) -> Result<()> {
        if self.generation == 0 {
            return Err(Error::new(Rule::RemoteGeneration, "HEAD of generation 0").at(32));
        }
        let length_bytes = self.manifest_length_bytes;
        if length_bytes == 0 || length_bytes > MAX_REMOTE_MANIFEST_BYTES {
            let detail = format!("a remote manifest of {length_bytes} bytes");
            return Err(Error::new(Rule::RemoteFrame, detail).at(72));
        }
        Ok(())
    }
}

const _: () =
    assert!(16 + size_of::<Uuid>() + 8 + size_of::<ObjectName>() + 8 + size_of::<Digest>() == Head::LENGTH);
