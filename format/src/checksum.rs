use xxhash_rust::xxh3;

/// A 128-bit XXH3 digest, in the canonical (big-endian) order that `xxhsum -H128` prints.
pub type Digest = [u8; 16];

/// Bytes of a chunk: the unit in which sealed data is digested, so that one view can be verified without the rest.
pub const CHUNK_BYTES: u64 = 1024 * 1024;

/// The XXH3-128 digest of `bytes`.
#[must_use]
pub fn digest(bytes: &[u8]) -> Digest {
    xxh3::xxh3_128(bytes).to_be_bytes()
}

/// The digest of bytes that come in pieces.
#[derive(Clone, Default)]
pub struct Digester(xxh3::Xxh3);

impl Digester {
    /// The next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// What [`digest`] gives for all pieces together.
    #[must_use]
    pub fn finish(&self) -> Digest {
        self.0.digest128().to_be_bytes()
    }
}

/// How many full chunks a sealed storage of this length has; what is left is its tail.
#[must_use]
pub fn full_chunk_count(length_bytes: u64) -> u64 {
    length_bytes / CHUNK_BYTES
}

/// Whether a sealed storage of this length has a `.sum` file: it has a full chunk.
#[must_use]
pub fn is_chunked(length_bytes: u64) -> bool {
    full_chunk_count(length_bytes) > 0
}

/// The chunk digests in the bytes of a `.sum` file. A partial digest at the end is left out.
pub fn digests_of_chunks(sum_file: &[u8]) -> impl Iterator<Item = Digest> + '_ {
    sum_file.as_chunks().0.iter().copied()
}

/// The 64-bit XXH3 check of one table entry, bound to its table's generation and its place in it.
pub(crate) fn entry_check(body: &[u8], generation: u64, ordinal: u64) -> [u8; 8] {
    let seed = generation.rotate_left(32) ^ ordinal;
    xxh3::xxh3_64_with_seed(body, seed).to_be_bytes()
}
