//! Reads a table completely, and corrects its digests.

use stridemap_format::{Node, PAGE_BYTES, StorageRecord, TableRef, TensorRecord, TreeRef, Uuid};

use crate::frame::redigested;
use crate::{u16_at, u64_at, uuid_at};

/// The reader of the format's own tests.
#[path = "../../format/tests/support/table.rs"]
mod whole;
use whole::{Table, TableFile};

type StorageEntry = (u64, StorageRecord);
type TensorEntry = (String, TensorRecord);

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

/// Returns a manifest's reference to these bytes, unchanged. The last node of a tree is its root.
#[must_use]
pub fn reference(bytes: &[u8]) -> (Uuid, TableRef) {
    let mut trees = [TreeRef { root_page: 0, entry_count: 0 }; 2];
    for (start, _) in nodes(bytes) {
        let tree = &mut trees[u16_at(bytes, start + 48) as usize % 2];
        tree.root_page = (start / PAGE_BYTES) as u64;
        if u16_at(bytes, start + 50) == 0 {
            tree.entry_count += u64::from(u16_at(bytes, start + 52));
        }
    }
    let [storages, tensors] = trees;
    let page_count = bytes.len().div_ceil(PAGE_BYTES) as u64;
    (uuid_at(bytes, 16), TableRef { generation: u64_at(bytes, 32), page_count, storages, tensors })
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
    let Ok(file) = TableFile::open(bytes, uuid, &reference, u64::MAX) else { return };
    for page in 0..reference.page_count {
        let Ok(node) = file.node(page) else { continue };
        let _ = (node.search::<StorageEntry>(&1), node.search::<TensorEntry>("t"));
        for index in 0..node.len() {
            let (storage, tensor) =
                (node.entry::<StorageEntry>(index, u64::MAX), node.entry::<TensorEntry>(index, u64::MAX));
            assert!(storage.is_err() || node.key_bytes::<StorageEntry>(index).is_ok());
            assert!(tensor.is_err() || node.key_bytes::<TensorEntry>(index).is_ok());
            let _ = tensor.map(|(_, record)| record.header.extent(u64::from(u32::MAX)));
            let _ = (node.child::<StorageEntry>(index), node.child::<TensorEntry>(index));
        }
    }
    let Ok(table) = Table::decode(bytes, uuid, &reference, u64::MAX) else { return };
    for (id, record) in &table.storages {
        let found = file.find::<StorageEntry>(id).expect("a table that was accepted");
        assert_eq!(found.0.map(|(_, record)| record).as_ref(), Some(record));
    }
    for (name, record) in &table.tensors {
        let found = file.find::<TensorEntry>(name).expect("a table that was accepted");
        assert_eq!(found.0.map(|(_, record)| record).as_ref(), Some(record));
    }
    let (again, reference) = table.encode();
    assert_eq!(Table::decode(&again, uuid, &reference, u64::MAX).as_ref(), Ok(&table));
}
