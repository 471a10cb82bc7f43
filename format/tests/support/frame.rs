//! Adds digests and checks to arbitrary bytes, as `SPEC.md` defines them.

use stridemap_format::digest;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Appends their digest to bytes.
pub(crate) fn digested(covered: &[u8]) -> Vec<u8> {
    [covered, &digest(covered)].concat()
}

/// Returns a manifest with a valid frame around any body.
pub(crate) fn manifest_of(body: &[u8]) -> Vec<u8> {
    digested(&[b"SMAPMAN\n\x01\0\0\0\0\0\0\0", &(body.len() as u64).to_le_bytes()[..], body].concat())
}

/// Returns a table entry with a valid check around any record.
pub(crate) fn entry_of(record: &[u8], generation: u64, ordinal: u64) -> Vec<u8> {
    let check = xxh3_64_with_seed(record, generation.rotate_left(32) ^ ordinal);
    [record, &check.to_be_bytes()].concat()
}
