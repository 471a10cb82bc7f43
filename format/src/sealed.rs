//! The digests of a sealed storage, computed as its bytes arrive.

use serde::{Deserialize, Serialize};

use crate::{CHUNK_BYTES, Digest, Digester, Error, Result, Rule, digest, full_chunk_count};

/// The record of a sealed storage: its digests, and the space that it may grow into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The last link of the [`ChunkChain`] over the full chunks.
    pub chunks: Digest,
    /// The digest of the bytes after the last full chunk. If there are none, this is the digest of an empty input.
    pub tail: Digest,
    /// A hint: the address space in bytes, from the start of the storage, that a reader may reserve so that the
    /// storage can grow within one mapping. A value up to the length reserves nothing.
    pub reserved_bytes: u64,
}

impl Sealed {
    /// Returns the record of a storage with these digests of its full chunks, and of the bytes after them, if any.
    #[must_use]
    pub fn of_digests(full: &[Digest], tail: Option<Digest>, reserved_bytes: u64) -> Self {
        let mut chain = ChunkChain::default();
        full.iter().for_each(|chunk| chain.push(*chunk));
        Sealed { chunks: chain.link(), tail: tail.unwrap_or_else(|| digest(&[])), reserved_bytes }
    }
}

/// A chain over the digests of full chunks. Each link is the digest of the previous link and the chunk's digest.
///
/// The chain covers all chunks in order, and can resume from any link. A storage can therefore grow without its
/// existing chunks being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkChain(Digest);

impl ChunkChain {
    /// Resumes a chain from a link, such as the one in a record.
    #[must_use]
    pub fn resume(link: Digest) -> Self {
        ChunkChain(link)
    }

    /// Adds the digest of the next full chunk.
    pub fn push(&mut self, chunk: Digest) {
        let mut digester = Digester::default();
        digester.update(&self.0);
        digester.update(&chunk);
        self.0 = digester.finish();
    }

    /// Returns the last link. Until a chunk is added, this is 16 zero bytes.
    #[must_use]
    pub fn link(&self) -> Digest {
        self.0
    }
}

/// Computes the digests of a sealed storage as its bytes arrive, from its first byte or from the end of an existing
/// storage.
#[derive(Clone, Default)]
pub struct Sealer {
    chain: ChunkChain,
    /// The bytes after the last full chunk.
    tail: Digester,
    tail_bytes: u64,
}

impl Sealer {
    /// Resumes at the end of a storage of `length_bytes`, whose bytes after the last full chunk are `tail`.
    ///
    /// # Errors
    /// [`Rule::ChunkDigest`] if `tail` does not match the record: damaged bytes must not get a valid digest.
    pub fn resume(sealed: &Sealed, length_bytes: u64, tail: &[u8]) -> Result<Self> {
        let offset_bytes = full_chunk_count(length_bytes).saturating_mul(CHUNK_BYTES);
        let tail_bytes = length_bytes.saturating_sub(offset_bytes);
        if tail.len() as u64 != tail_bytes || digest(tail) != sealed.tail {
            let detail = format!("the last {tail_bytes} bytes were changed");
            return Err(Error::new(Rule::ChunkDigest, detail).at(offset_bytes));
        }
        let mut sealer = Sealer { chain: ChunkChain::resume(sealed.chunks), ..Sealer::default() };
        sealer.tail.update(tail);
        sealer.tail_bytes = tail_bytes;
        Ok(sealer)
    }

    /// Adds the next bytes. For each chunk that they complete, calls `filled` with its digest, which belongs in the
    /// `.sum` file.
    pub fn update(&mut self, mut bytes: &[u8], mut filled: impl FnMut(Digest)) {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES.saturating_sub(self.tail_bytes);
            let part_len = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
            let (part, rest) = bytes.split_at(part_len);
            bytes = rest;
            if (part.len() as u64) < room {
                self.tail.update(part);
                self.tail_bytes = self.tail_bytes.saturating_add(part.len() as u64);
                continue;
            }
            // A whole chunk is digested at once, which is faster.
            let chunk = if self.tail_bytes == 0 {
                digest(part)
            } else {
                self.tail.update(part);
                std::mem::take(&mut self.tail).finish()
            };
            self.tail_bytes = 0;
            self.chain.push(chunk);
            filled(chunk);
        }
    }

    /// Returns the record of all bytes so far.
    #[must_use]
    pub fn sealed(&self, reserved_bytes: u64) -> Sealed {
        Sealed { chunks: self.chain.link(), tail: self.tail.finish(), reserved_bytes }
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("sealed", &self.sealed(0)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = CHUNK_BYTES as usize;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Computes the digests as SPEC.md says, without the code above.
    fn expected(bytes: &[u8]) -> (Sealed, Vec<Digest>) {
        let (chunks, tail) = bytes.as_chunks::<CHUNK>();
        let digests: Vec<Digest> = chunks.iter().map(|chunk| digest(chunk)).collect();
        let chunks = digests.iter().fold([0; 16], |link, chunk| digest(&[link, *chunk].concat()));
        (Sealed { chunks, tail: digest(tail), reserved_bytes: 7 }, digests)
    }

    #[test]
    fn digests_do_not_depend_on_the_pieces_in_which_bytes_arrive() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5] {
            let bytes = bytes(len);
            for piece in [1000, CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK] {
                let (sealed, of_chunks) = expected(&bytes);
                let tail = bytes.chunks(CHUNK).last().filter(|last| last.len() < CHUNK).map(digest);
                assert_eq!(Sealed::of_digests(&of_chunks, tail, 7), sealed);
                let (mut sealer, mut digests) = (Sealer::default(), Vec::new());
                for piece in bytes.chunks(piece) {
                    sealer.update(piece, |chunk| digests.push(chunk));
                }
                assert_eq!((sealer.sealed(7), digests), (sealed, of_chunks), "{len} bytes by {piece}");
            }
        }
    }

    #[test]
    fn resumed_sealer_returns_the_digests_of_all_bytes() {
        let bytes = bytes(2 * CHUNK + 300);
        for cut in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, bytes.len()] {
            let (before, known) = expected(&bytes[..cut]);
            let tail = &bytes[cut / CHUNK * CHUNK..cut];
            let mut sealer = Sealer::resume(&before, cut as u64, tail).unwrap();
            let mut digests = known;
            sealer.update(&bytes[cut..], |chunk| digests.push(chunk));
            assert_eq!((sealer.sealed(7), digests), expected(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn sealer_does_not_resume_on_a_damaged_tail() {
        let bytes = bytes(CHUNK + 3);
        let (sealed, _) = expected(&bytes);
        let mut tail = bytes[CHUNK..].to_vec();
        tail[1] ^= 1;
        for wrong in [&tail[..], &bytes[CHUNK..CHUNK + 2], &bytes[CHUNK - 1..]] {
            let refused = Sealer::resume(&sealed, bytes.len() as u64, wrong).unwrap_err();
            assert_eq!((refused.rule(), refused.offset_bytes()), (Rule::ChunkDigest, Some(CHUNK_BYTES)));
        }
    }
}
