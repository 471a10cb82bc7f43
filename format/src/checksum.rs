//! Digests of storages and metadata.

use xxhash_rust::xxh3;

/// A 128-bit XXH3 digest, in the canonical (big-endian) order that `xxhsum -H128` prints.
pub type Digest = [u8; 16];

/// The size of a chunk in bytes. Each chunk of a sealed storage has its own digest, so a view can be verified without
/// reading the rest.
pub const CHUNK_BYTES: u64 = 1024 * 1024;

/// Returns the XXH3-128 digest of `bytes`.
#[must_use]
pub fn digest(bytes: &[u8]) -> Digest {
    xxh3::xxh3_128(bytes).to_be_bytes()
}

/// Computes the digest of bytes that arrive in pieces.
#[derive(Clone, Default)]
pub struct Digester(xxh3::Xxh3);

impl Digester {
    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Returns the [`digest`] of all pieces concatenated.
    #[must_use]
    pub fn finish(&self) -> Digest {
        self.0.digest128().to_be_bytes()
    }
}

/// Returns the number of full chunks in a sealed storage of this length. The bytes after them are its tail.
#[must_use]
pub fn full_chunk_count(length_bytes: u64) -> u64 {
    length_bytes / CHUNK_BYTES
}

/// Iterates over the chunk digests in the bytes of a `.sum` file. A partial digest at the end is skipped.
pub fn digests_of_chunks(sum_file: &[u8]) -> impl Iterator<Item = Digest> + '_ {
    sum_file.as_chunks().0.iter().copied()
}
