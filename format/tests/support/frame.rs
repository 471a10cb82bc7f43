//! Digests and checks around bytes of any kind, as `SPEC.md` states them.

use stridemap_format::digest;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes that end with their digest.
pub(crate) fn digested(covered: &[u8]) -> Vec<u8> {
    [covered, &digest(covered)].concat()
}

/// A manifest whose frame is right, whatever its body is.
pub(crate) fn manifest_of(body: &[u8]) -> Vec<u8> {
    digested(&[b"SMAPMAN\n\x01\0\0\0\0\0\0\0", &(body.len() as u64).to_le_bytes()[..], body].concat())
}

/// A table's entry whose check is right, whatever its record is.
pub(crate) fn entry_of(record: &[u8], generation: u64, ordinal: u64) -> Vec<u8> {
    let check = xxh3_64_with_seed(record, generation.rotate_left(32) ^ ordinal);
    [record, &check.to_be_bytes()].concat()
}
