//! The identity of a generation, whichever copy of the store has it.

use stridemap_format::{Digest, Manifest, digest};

use super::Generation;
use crate::error::{Error, Result};

/// The identity of a generation: its number, and the digest of its manifest without the history. Two stores with the same
/// uuid whose generations have the same identity have the same tensors in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GenerationId {
    /// The number of the generation.
    pub number: u64,
    /// The digest of the manifest that a tag of the generation keeps.
    pub digest: Digest,
}

impl GenerationId {
    pub(crate) fn of(manifest: &Manifest) -> Result<Self> {
        let bytes = manifest.without_history().encode();
        let bytes = bytes.map_err(|e| Error::refused("identify a generation", e))?;
        Ok(GenerationId { number: manifest.generation, digest: digest(&bytes) })
    }
}

impl Generation {
    /// Returns the identity of this generation.
    pub(crate) fn id(&self) -> Result<GenerationId> {
        GenerationId::of(self.manifest())
    }
}
