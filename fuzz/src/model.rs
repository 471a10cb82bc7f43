//! A store described by values. Any value may be wrong, but the files made from them have correct digests.

use std::collections::BTreeMap;

use stridemap_format::{Sealer, digest};

use crate::wire;
use crate::{fix_digest, table};

/// The contents of a manifest, its table, and the bytes of the storages.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub uuid: [u8; 16],
    pub generation: u64,
    pub parent: u64,
    pub next_id: u64,
    pub table: Option<Table>,
    pub storages: Vec<Storage>,
    pub tensors: Vec<Tensor>,
    pub removed_storages: Vec<u64>,
    pub removed_tensors: Vec<Vec<u8>>,
    pub attributes: Vec<((String, String), String)>,
    pub garbage: Vec<(u64, u64)>,
}

/// A manifest's reference to its table, and the table's header.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub generation: u64,
    /// The number of storages in the table; they are the first ones of the model, and the others are changes.
    /// `tensors` is the same for tensors.
    pub storages: usize,
    pub tensors: usize,
    /// Added to the correct count in the header.
    pub more_storages: u64,
    pub more_tensors: u64,
    /// Added to the correct length in the manifest.
    pub more_bytes: u64,
    pub is_damaged: bool,
    /// Slots with wrong values.
    pub slots: Vec<(usize, u64)>,
}

#[derive(Clone, Debug)]
pub struct Storage {
    pub id: u64,
    pub length_bytes: u64,
    pub tensor_count: u64,
    pub kind: u64,
    pub access_bytes: u8,
    pub reserved_bytes: u64,
    pub chunks: [u8; 16],
    pub tail: [u8; 16],
    pub path: Vec<u8>,
    pub offset_bytes: u64,
    pub stamp: [u64; 4],
    /// The bytes of the file.
    pub bytes: Vec<u8>,
    pub sum: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub dtype: u8,
    pub size: Vec<u64>,
    pub stride: Vec<i64>,
    pub offset_elems: u64,
    pub storage_id: u64,
    pub dim_names: Option<Vec<Option<String>>>,
}

impl Storage {
    /// Creates a sealed storage with these bytes.
    #[must_use]
    pub fn sealed(id: u64, bytes: Vec<u8>) -> Self {
        let (mut sealer, mut sum) = (Sealer::default(), Vec::new());
        sealer.update(&bytes, |chunk| sum.extend(chunk));
        let sealed = sealer.sealed(0);
        Storage {
            id,
            length_bytes: bytes.len() as u64,
            tensor_count: 0,
            kind: 0,
            access_bytes: 4,
            reserved_bytes: 0,
            chunks: sealed.chunks,
            tail: sealed.tail,
            path: b"outside.bin".to_vec(),
            offset_bytes: 0,
            stamp: [0; 4],
            bytes,
            sum,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        wire::uint(out, self.length_bytes);
        wire::uint(out, self.tensor_count);
        wire::uint(out, self.kind);
        match self.kind {
            0 => {
                out.extend(self.chunks);
                out.extend(self.tail);
                wire::uint(out, self.reserved_bytes);
            }
            2 => out.push(self.access_bytes),
            3 => {
                wire::text(out, &self.path);
                wire::uint(out, self.offset_bytes);
                let [device, inode, size, mtime] = self.stamp;
                [device, inode, size].into_iter().for_each(|n| wire::uint(out, n));
                wire::int(out, mtime as i64);
            }
            _ => {}
        }
    }
}

impl Tensor {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(self.dtype);
        wire::list(out, &self.size, |out, &n| wire::uint(out, n));
        wire::list(out, &self.stride, |out, &n| wire::int(out, n));
        wire::uint(out, self.offset_elems);
        wire::uint(out, self.storage_id);
        out.push(u8::from(self.dim_names.is_some()));
        if let Some(names) = &self.dim_names {
            wire::list(out, names, |out, name| {
                out.push(u8::from(name.is_some()));
                name.iter().for_each(|name| wire::text(out, name.as_bytes()));
            });
        }
    }
}

impl Model {
    /// Returns every file of the store, by its path relative to the store.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut marker = b"\x89SMAP\r\n\x1a\x01\0\0\0\0\0\0\0".to_vec();
        marker.extend(self.uuid);
        marker.extend(digest(&marker));
        files.insert("FORMAT".to_owned(), marker);
        files.insert("LOCK".to_owned(), Vec::new());
        for storage in &self.storages {
            files.insert(format!("storages/{:016x}.bin", storage.id), storage.bytes.clone());
            if !storage.sum.is_empty() {
                files.insert(format!("storages/{:016x}.sum", storage.id), storage.sum.clone());
            }
        }
        let table = self.table.as_ref().map(|table| {
            let bytes = self.table_bytes(table);
            let mut header_digest = digest(bytes.get(..64).unwrap_or(&bytes));
            header_digest[0] ^= u8::from(table.is_damaged);
            let length_bytes = (bytes.len() as u64).wrapping_add(table.more_bytes);
            files.insert(format!("meta/{:016x}.tab", table.generation), bytes);
            (table.generation, length_bytes, header_digest)
        });
        files.insert(format!("meta/{:016x}.man", self.generation), self.manifest_bytes(table));
        files
    }

    fn manifest_bytes(&self, table: Option<(u64, u64, [u8; 16])>) -> Vec<u8> {
        let mut body = self.uuid.to_vec();
        [self.generation, self.parent, self.next_id].into_iter().for_each(|n| wire::uint(&mut body, n));
        body.push(u8::from(table.is_some()));
        if let Some((generation, length_bytes, header_digest)) = table {
            wire::uint(&mut body, generation);
            wire::uint(&mut body, length_bytes);
            body.extend(header_digest);
        }
        let (in_table_storages, in_table_tensors) =
            self.table.as_ref().map_or((0, 0), |table| (table.storages, table.tensors));
        let mut storages: Vec<_> =
            self.storages.iter().skip(in_table_storages).map(|storage| (storage.id, Some(storage))).collect();
        storages.extend(self.removed_storages.iter().map(|&id| (id, None)));
        storages.sort_by_key(|&(id, _)| id);
        wire::list(&mut body, &storages, |out, (id, storage)| {
            wire::uint(out, *id);
            out.push(u8::from(storage.is_some()));
            storage.iter().for_each(|storage| storage.write(out));
        });
        let mut tensors: Vec<_> =
            self.tensors.iter().skip(in_table_tensors).map(|tensor| (&tensor.name, Some(tensor))).collect();
        tensors.extend(self.removed_tensors.iter().map(|name| (name, None)));
        tensors.sort_by_key(|&(name, _)| name);
        wire::list(&mut body, &tensors, |out, (name, tensor)| {
            wire::text(out, name);
            out.push(u8::from(tensor.is_some()));
            tensor.iter().for_each(|tensor| tensor.write(out));
        });
        wire::list(&mut body, &self.attributes, |out, ((scope, key), value)| {
            wire::text(out, scope.as_bytes());
            wire::text(out, key.as_bytes());
            wire::text(out, value.as_bytes());
        });
        wire::list(&mut body, &self.garbage, |out, &(id, dropped)| {
            wire::uint(out, id);
            wire::uint(out, dropped);
        });
        let mut bytes = b"SMAPMAN\n\x01\0\0\0\0\0\0\0".to_vec();
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes.extend([0; 16]);
        fix_digest(&mut bytes);
        bytes
    }

    fn table_bytes(&self, table: &Table) -> Vec<u8> {
        let mut entries: Vec<Vec<u8>> = Vec::new();
        for storage in self.storages.iter().take(table.storages) {
            let mut entry = Vec::new();
            wire::uint(&mut entry, storage.id);
            storage.write(&mut entry);
            entries.push(entry);
        }
        let storage_count = entries.len() as u64;
        for tensor in self.tensors.iter().take(table.tensors) {
            let mut entry = Vec::new();
            wire::text(&mut entry, &tensor.name);
            tensor.write(&mut entry);
            entries.push(entry);
        }
        let mut bytes = b"SMAPTAB\n\x01\0\0\0\0\0\0\0".to_vec();
        bytes.extend(self.uuid);
        let tensor_count = entries.len() as u64 - storage_count;
        for n in [table.generation, storage_count, tensor_count, 0] {
            bytes.extend(n.to_le_bytes());
        }
        let mut slots = vec![bytes.len() as u64];
        for entry in &entries {
            bytes.extend(entry);
            bytes.extend([0; 8]);
            slots.push(bytes.len() as u64);
        }
        let index = bytes.len();
        bytes.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
        table::mend(&mut bytes);
        // Overwrite the correct values with wrong ones.
        bytes[40..48].copy_from_slice(&storage_count.wrapping_add(table.more_storages).to_le_bytes());
        bytes[48..56].copy_from_slice(&tensor_count.wrapping_add(table.more_tensors).to_le_bytes());
        for &(slot, value) in &table.slots {
            let at = index + slot % slots.len() * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}
