//! Reads a table completely, and corrects its digests.

use std::fmt::Debug;

use stridemap_format::{Bounds, Entry, GarbageKey, KeptKey, Node, PAGE_BYTES, TableRef, TreeRef, Uuid};

use crate::frame::redigested;
use crate::{u16_at, u64_at, uuid_at};

/// The reader of the format's own tests.
#[path = "../../format/tests/support/table.rs"]
#[allow(dead_code, reason = "only some of it is used here")]
mod whole;
use whole::{GarbageEntry, KeptEntry, StorageEntry, Table, TableFile, TagEntry, TensorEntry};

/// Those of a manifest with the largest numbers.
const BOUNDS: Bounds = Bounds { generation: u64::MAX, next_storage_id: u64::MAX };

/// Returns the offset and the length of each node, as the nodes state it.
fn nodes(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut nodes, mut start) = (Vec::new(), 0);
    while let Some(rest) = bytes.get(start..).filter(|rest| rest.len() >= PAGE_BYTES) {
        let length = Node::page_count(rest) as usize * PAGE_BYTES;
        let length = length.min(rest.len() / PAGE_BYTES * PAGE_BYTES);
        nodes.push((start, length));
        start += length;
    }
    nodes
}

/// Returns a manifest's reference to these bytes, unchanged: to a table of all trees. The last node of a tree is its
/// root.
#[must_use]
pub fn reference(bytes: &[u8]) -> (Uuid, TableRef) {
    let mut trees = [TreeRef::default(); 5];
    for (start, _) in nodes(bytes) {
        let tree = &mut trees[u16_at(bytes, start + 48) as usize % 5];
        tree.root_page = (start / PAGE_BYTES) as u64;
        if u16_at(bytes, start + 50) == 0 {
            tree.entry_count += u64::from(u16_at(bytes, start + 52));
        }
    }
    let page_count = bytes.len().div_ceil(PAGE_BYTES) as u64;
    (uuid_at(bytes, 16), TableRef { generation: u64_at(bytes, 32), page_count, trees })
}

/// Corrects the page, uuid, generation and digest of every node. The first node has the uuid and generation.
pub fn mend(bytes: &mut Vec<u8>) {
    let store = bytes.get(16..40).map(<[u8]>::to_vec);
    for (start, length) in nodes(bytes) {
        let mut node = bytes[start..start + length].to_vec();
        node[16..40].copy_from_slice(store.as_deref().unwrap_or(&[0; 24]));
        node[40..48].copy_from_slice(&((start / PAGE_BYTES) as u64).to_le_bytes());
        bytes[start..start + length].copy_from_slice(&redigested(node));
    }
}

/// Reads every node, and the whole table, like a verification. A table that is accepted is found entry by entry, and is
/// encoded again with the same contents.
///
/// # Panics
/// If it is not.
pub fn read(bytes: &[u8]) {
    let (uuid, reference) = reference(bytes);
    let Ok(file) = TableFile::open(bytes, uuid, &reference, BOUNDS) else { return };
    for page in 0..reference.page_count {
        let Ok(node) = file.node(page) else { continue };
        read_as::<StorageEntry>(&node, &1);
        read_as::<TensorEntry>(&node, "t");
        read_as::<TagEntry>(&node, "t");
        read_as::<KeptEntry>(&node, &KeptKey { is_tagged: true, generation: 1 });
        read_as::<GarbageEntry>(&node, &GarbageKey { is_tagged: true, dropped: 1, id: 1 });
        for index in 0..node.len() {
            let tensor = node.entry::<TensorEntry>(index, BOUNDS);
            let _ = tensor.map(|(_, record)| record.header.extent(u64::from(u32::MAX)));
        }
    }
    let Ok(table) = Table::decode(bytes, uuid, &reference, BOUNDS) else { return };
    for (id, record) in &table.storages {
        find::<StorageEntry>(&file, id, (*id, record.clone()));
    }
    for (name, record) in &table.tensors {
        find::<TensorEntry>(&file, name, (name.clone(), record.clone()));
    }
    for (name, tag) in &table.tags {
        find::<TagEntry>(&file, name, (name.clone(), tag.clone()));
    }
    for (key, kept) in &table.kept {
        find::<KeptEntry>(&file, key, (*key, *kept));
    }
    for (key, record) in &table.garbage {
        find::<GarbageEntry>(&file, key, (*key, record.clone()));
    }
    let (again, reference) = table.encode();
    assert_eq!(Table::decode(&again, uuid, &reference, BOUNDS).as_ref(), Ok(&table));
}

/// Reads a node as one of a tree, which it may not be.
fn read_as<E: Entry>(node: &Node, key: &E::Key) {
    let _ = node.search::<E>(key);
    for index in 0..node.len() {
        let is_decoded = node.entry::<E>(index, BOUNDS).is_ok();
        assert!(!is_decoded || node.key_bytes::<E>(index).is_ok());
        let _ = node.child::<E>(index);
    }
}

fn find<E: Entry + PartialEq + Debug>(file: &TableFile<'_>, key: &E::Key, expected: E) {
    let found = file.find::<E>(key).expect("a table that was accepted");
    assert_eq!(found.0, Some(expected));
}
