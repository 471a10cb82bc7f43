//! The digests of the blocks of a segment, with which a part of it is checked.

use stridemap_format::remote::{BLOCK_BYTES, BLOCK_DIGEST_BYTES};

/// The first bytes of a BLAKE3 digest.
pub(crate) type BlockDigest = [u8; BLOCK_DIGEST_BYTES as usize];

/// Computes the digests of blocks from their bytes, in order.
#[derive(Debug, Default)]
pub(crate) struct BlockHasher {
    /// The last block, as far as its bytes were added.
    block: blake3::Hasher,
    block_bytes: u64,
    /// Those of the blocks before it.
    digests: Vec<u8>,
}

impl BlockHasher {
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let length = bytes.len().min((BLOCK_BYTES - self.block_bytes) as usize);
            let (piece, rest) = bytes.split_at(length);
            bytes = rest;
            match length as u64 {
                BLOCK_BYTES => self.digests.extend(shortened(&blake3::hash(piece))),
                _ => {
                    self.block.update(piece);
                    self.block_bytes += length as u64;
                }
            }
            if self.block_bytes == BLOCK_BYTES {
                self.end_block();
            }
        }
    }

    /// Returns the digests of all blocks, one after another.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.block_bytes > 0 {
            self.end_block();
        }
        self.digests
    }

    fn end_block(&mut self) {
        self.digests.extend(shortened(&self.block.finalize()));
        self.block.reset();
        self.block_bytes = 0;
    }
}

fn shortened(hash: &blake3::Hash) -> BlockDigest {
    let mut digest = [0; BLOCK_DIGEST_BYTES as usize];
    let (first, _) = hash.as_bytes().split_at(BLOCK_DIGEST_BYTES as usize);
    digest.copy_from_slice(first);
    digest
}

/// Returns the check of a segment whose blocks have these digests.
pub(crate) fn check_of(digests: &[u8]) -> BlockDigest {
    BlockDigest::try_from(digests).unwrap_or_else(|_| shortened(&blake3::hash(digests)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_do_not_depend_on_how_bytes_arrive() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 77).map(|i| (i % 251) as u8).collect();
        let expected: Vec<u8> =
            bytes.chunks(BLOCK_BYTES as usize).flat_map(|block| shortened(&blake3::hash(block))).collect();
        for length in [1, 1000, BLOCK_BYTES as usize - 1, BLOCK_BYTES as usize, 100_000, bytes.len()] {
            let mut hasher = BlockHasher::default();
            bytes.chunks(length).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish(), expected, "{length}");
        }
    }

    #[test]
    fn check_of_one_block_is_its_digest() {
        let mut hasher = BlockHasher::default();
        hasher.update(b"abc");
        assert_eq!(check_of(&hasher.finish()), shortened(&blake3::hash(b"abc")));
        assert_eq!(check_of(&[1; 32]), shortened(&blake3::hash(&[1; 32])));
    }
}
