//! Adds digests and headers to arbitrary bytes, as `SPEC.md` defines them.

use stridemap_format::{Uuid, digest};

/// Appends their digest to bytes.
pub(crate) fn digested(covered: &[u8]) -> Vec<u8> {
    [covered, &digest(covered)].concat()
}

/// Returns a manifest with a valid frame around any body.
pub(crate) fn manifest_of(body: &[u8]) -> Vec<u8> {
    digested(&[b"SMAPMAN\n\x01\0\0\0\0\0\0\0", &(body.len() as u64).to_le_bytes()[..], body].concat())
}

/// The place of a node in a table: its page, tree and level.
pub(crate) type Place = (u64, u16, u16);

/// Returns a node of a table, with a valid header and valid slots around any entries.
pub(crate) fn node_of(uuid: Uuid, generation: u64, place: Place, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut slots = vec![56 + 2 * (entries.len() + 1)];
    slots.extend(entries.iter().scan(slots[0], |end, entry| {
        *end += entry.len();
        Some(*end)
    }));
    let page_count = slots[entries.len()].div_ceil(4096);
    let (page, tree, level) = place;
    let numbers = [tree, level, entries.len() as u16, page_count as u16].map(u16::to_le_bytes);
    let slots: Vec<u8> = slots.iter().flat_map(|&slot| (slot as u16).to_le_bytes()).collect();
    let numbers_64 = [generation, page].map(u64::to_le_bytes);
    let mut node = [&[0; 16], &uuid[..], numbers_64.as_flattened(), numbers.as_flattened(), &slots].concat();
    node.extend(entries.concat());
    node.resize(page_count * 4096, 0);
    redigested(node)
}

/// Returns a node with the digest that its other bytes have.
pub(crate) fn redigested(mut node: Vec<u8>) -> Vec<u8> {
    let digest = digest(&node[16..]);
    node[..16].copy_from_slice(&digest);
    node
}
