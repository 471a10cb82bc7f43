//! A store described by values. Any value may be wrong, but the files made from them have correct digests.

use std::collections::BTreeMap;

use stridemap_format::{PAGE_BYTES, Sealer};

use crate::frame::{digested, manifest_of, node_of, redigested};
use crate::wire;

/// The contents of a manifest, its table, and the bytes of the storages.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub uuid: [u8; 16],
    pub generation: u64,
    pub next_id: u64,
    pub table: Option<Table>,
    pub storages: Vec<Storage>,
    pub tensors: Vec<Tensor>,
    pub removed_storages: Vec<u64>,
    pub removed_tensors: Vec<Vec<u8>>,
    pub attributes: Vec<((String, String), String)>,
    pub garbage: Vec<(u64, u64)>,
}

/// A manifest's reference to its table, and the table's nodes.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub generation: u64,
    /// The number of storages in the table; they are the first ones of the model, and the others are changes.
    /// `tensors` is the same for tensors.
    pub storages: usize,
    pub tensors: usize,
    /// The maximum number of entries of a leaf, and of children of an inner node if they are at least 2.
    pub entries_per_node: usize,
    /// Added to the correct counts in the manifest.
    pub more_storages: u64,
    pub more_tensors: u64,
    /// Added to the correct number of pages in the manifest, and to the page of the tensors' root.
    pub more_pages: u64,
    pub more_root: u64,
    pub is_damaged: bool,
    /// Wrong values of u16 fields in the tensors' root: its tree, level, count, pages and slots, by position.
    pub fields: Vec<(usize, u64)>,
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
    /// Inode, size and mtime.
    pub stamp: [u64; 3],
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
            stamp: [0; 3],
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
                let [inode, size, mtime] = self.stamp;
                [inode, size].into_iter().for_each(|n| wire::uint(out, n));
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
        let marker = digested(&[b"\x89SMAP\r\n\x1a\x01\0\0\0\0\0\0\0", &self.uuid[..]].concat());
        files.insert("FORMAT".to_owned(), marker);
        files.insert("LOCK".to_owned(), Vec::new());
        for storage in &self.storages {
            files.insert(format!("storages/{:016x}.bin", storage.id), storage.bytes.clone());
            if !storage.sum.is_empty() {
                files.insert(format!("storages/{:016x}.sum", storage.id), storage.sum.clone());
            }
        }
        let table = self.table.as_ref().map(|table| {
            let (bytes, numbers) = self.table_bytes(table);
            files.insert(format!("meta/{:016x}.tab", table.generation), bytes);
            numbers
        });
        files.insert(format!("meta/{:016x}.man", self.generation), self.manifest_bytes(table));
        files
    }

    /// Returns the manifest. `table` are the numbers of its reference to the table, in order.
    fn manifest_bytes(&self, table: Option<[u64; 6]>) -> Vec<u8> {
        let mut body = self.uuid.to_vec();
        [self.generation, self.next_id].into_iter().for_each(|n| wire::uint(&mut body, n));
        body.push(u8::from(table.is_some()));
        table.into_iter().flatten().for_each(|n| wire::uint(&mut body, n));
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
        manifest_of(&body)
    }

    /// Returns the table, and the numbers of a manifest's reference to it.
    fn table_bytes(&self, table: &Table) -> (Vec<u8>, [u64; 6]) {
        let entry = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut entry = Vec::new();
            write(&mut entry);
            entry
        };
        let storages = self.storages.iter().take(table.storages).map(|storage| {
            let key = entry(&|out| wire::uint(out, storage.id));
            (key, entry(&|out| storage.write(out)))
        });
        let tensors = self.tensors.iter().take(table.tensors).map(|tensor| {
            let key = entry(&|out| wire::text(out, &tensor.name));
            (key, entry(&|out| tensor.write(out)))
        });
        let (storages, tensors): (Vec<_>, Vec<_>) = (storages.collect(), tensors.collect());
        let counts = [storages.len() as u64, tensors.len() as u64];
        let mut bytes = Vec::new();
        let storages_root = self.add_tree(table, 0, storages, &mut bytes);
        let root = self.add_tree(table, 1, tensors, &mut bytes);
        let root_offset = root as usize * PAGE_BYTES;
        // Overwrite the correct values with wrong ones.
        let mut node = bytes.split_off(root_offset);
        for &(field, value) in &table.fields {
            let at = 48 + 2 * (field % 16);
            node[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
        }
        bytes.extend(redigested(node));
        bytes[root_offset] ^= u8::from(table.is_damaged);
        let numbers = [
            table.generation,
            ((bytes.len() / PAGE_BYTES) as u64).wrapping_add(table.more_pages),
            storages_root,
            counts[0].wrapping_add(table.more_storages),
            root.wrapping_add(table.more_root),
            counts[1].wrapping_add(table.more_tensors),
        ];
        (bytes, numbers)
    }

    /// Appends the nodes of a tree to a table, and returns the page of the root. The entries are keys and the rest.
    fn add_tree(
        &self,
        table: &Table,
        tree: u16,
        mut entries: Vec<(Vec<u8>, Vec<u8>)>,
        out: &mut Vec<u8>,
    ) -> u64 {
        let mut level = 0;
        loop {
            let most = table.entries_per_node.max(if level == 0 { 1 } else { 2 });
            // An empty tree is an empty leaf. An inner node has at least two children, so the last node of a level takes
            // a child that would be alone.
            let is_one_left = level > 0 && entries.len() > most && entries.len() % most == 1;
            let last = if is_one_left { most + 1 } else { 0 };
            let (full, last) = entries.split_at(entries.len() - last);
            let nodes: Vec<_> = match entries.is_empty() {
                true => vec![last],
                false => full.chunks(most).chain((!last.is_empty()).then_some(last)).collect(),
            };
            let mut parents = Vec::new();
            for node in &nodes {
                let page = (out.len() / PAGE_BYTES) as u64;
                let whole: Vec<_> = node.iter().map(|(key, rest)| [&key[..], rest].concat()).collect();
                out.extend(node_of(self.uuid, table.generation, (page, tree, level), &whole));
                if nodes.len() == 1 {
                    return page;
                }
                let mut child = Vec::new();
                wire::uint(&mut child, page);
                parents.push((node[0].0.clone(), child));
            }
            (entries, level) = (parents, level + 1);
        }
    }
}
