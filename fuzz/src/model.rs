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
    pub time_ns: i64,
    pub message: Option<String>,
    pub next_id: u64,
    pub table: Option<Table>,
    /// The table of all tags, kept generations and garbage. Without it, they are changes.
    pub history: Option<Table>,
    pub storages: Vec<Storage>,
    pub tensors: Vec<Tensor>,
    pub removed_storages: Vec<u64>,
    pub removed_tensors: Vec<Vec<u8>>,
    pub attributes: Vec<((String, String), String)>,
    pub tags: Vec<Tag>,
    pub kept: Vec<Kept>,
    pub garbage: Vec<Garbage>,
}

#[derive(Clone, Debug)]
pub struct Tag {
    pub name: Vec<u8>,
    pub generation: u64,
    pub message: Option<String>,
}

/// A kept generation. It has the storages and tensors of the model, and the garbage that was dropped later.
#[derive(Clone, Debug)]
pub struct Kept {
    pub is_tagged: u8,
    pub generation: u64,
    pub time_ns: i64,
    pub next_id: u64,
    pub table: Option<u64>,
    pub tag_count: u64,
}

#[derive(Clone, Debug)]
pub struct Garbage {
    pub is_tagged: u8,
    pub dropped: u64,
    pub storage: Storage,
}

/// A manifest's reference to its table, and the table's nodes.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub generation: u64,
    /// The number of storages in the table; they are the first ones of the model, and the others are changes.
    /// `tensors` is the same for tensors. Neither is used for the table of a history.
    pub storages: usize,
    pub tensors: usize,
    /// The maximum number of entries of a leaf, and of children of an inner node if they are at least 2.
    pub entries_per_node: usize,
    /// Added to the correct counts of the first and the last tree in the manifest.
    pub more_first: u64,
    pub more_last: u64,
    /// Added to the correct number of pages in the manifest, and to the page of the last tree's root.
    pub more_pages: u64,
    pub more_root: u64,
    pub is_damaged: bool,
    /// Wrong values of u16 fields in the last root: its tree, level, count, pages and slots, by position.
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
    pub is_restored: u8,
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
            is_restored: 0,
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
        out.push(self.is_restored);
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

/// An entry of a leaf: its key, and the rest.
type Encoded = (Vec<u8>, Vec<u8>);

fn encoded(key: impl FnOnce(&mut Vec<u8>), record: impl FnOnce(&mut Vec<u8>)) -> Encoded {
    let mut entry = Encoded::default();
    key(&mut entry.0);
    record(&mut entry.1);
    entry
}

fn write_message(out: &mut Vec<u8>, message: Option<&String>) {
    out.push(u8::from(message.is_some()));
    message.into_iter().for_each(|message| wire::text(out, message.as_bytes()));
}

impl Model {
    /// Returns every file of the store, by its path relative to the store.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let marker = digested(&[b"\x89SMAP\r\n\x1a\x01\0\0\0\0\0\0\0", &self.uuid[..]].concat());
        files.insert("FORMAT".to_owned(), marker);
        files.insert("LOCK".to_owned(), Vec::new());
        for storage in self.storages.iter().chain(self.garbage.iter().map(|garbage| &garbage.storage)) {
            files.insert(format!("storages/{:016x}.bin", storage.id), storage.bytes.clone());
            if !storage.sum.is_empty() {
                files.insert(format!("storages/{:016x}.sum", storage.id), storage.sum.clone());
            }
        }
        for kept in &self.kept {
            let path = format!("generations/{:016x}.man", kept.generation);
            let manifest = self.at(kept).manifest_bytes(&mut files);
            files.insert(path, manifest);
        }
        let manifest = self.manifest_bytes(&mut files);
        files.insert(format!("meta/{:016x}.man", self.generation), manifest);
        files
    }

    /// Returns an earlier generation, as its tag keeps it.
    fn at(&self, kept: &Kept) -> Model {
        let mut earlier = Model {
            generation: kept.generation,
            time_ns: kept.time_ns,
            next_id: kept.next_id,
            table: self.table.clone().filter(|table| kept.table == Some(table.generation)),
            history: None,
            tags: Vec::new(),
            kept: Vec::new(),
            garbage: Vec::new(),
            ..self.clone()
        };
        for garbage in self.garbage.iter().filter(|garbage| garbage.dropped > kept.generation) {
            let storage = Storage { tensor_count: 1, ..garbage.storage.clone() };
            earlier.tensors.push(Tensor {
                name: format!("~dropped{}", storage.id).into(),
                dtype: 1,
                size: vec![storage.length_bytes],
                stride: vec![1],
                offset_elems: 0,
                storage_id: storage.id,
                dim_names: None,
            });
            earlier.storages.push(storage);
        }
        earlier
    }

    /// Returns the manifest, and adds its tables to the files.
    fn manifest_bytes(&self, files: &mut BTreeMap<String, Vec<u8>>) -> Vec<u8> {
        let mut body = self.uuid.to_vec();
        wire::uint(&mut body, self.generation);
        wire::int(&mut body, self.time_ns);
        write_message(&mut body, self.message.as_ref());
        wire::uint(&mut body, self.next_id);
        let (in_table_storages, in_table_tensors) =
            self.table.as_ref().map_or((0, 0), |table| (table.storages, table.tensors));
        let (storages, tensors) = (self.encoded_storages(), self.encoded_tensors());
        let history = [self.encoded_tags(), self.encoded_kept(), self.encoded_garbage()];
        let in_table = [
            storages.iter().take(in_table_storages).cloned().collect(),
            tensors.iter().take(in_table_tensors).cloned().collect(),
        ];
        for (table, first, trees, path) in [
            (&self.table, 0, &in_table[..], "generations/{}.tab"),
            (&self.history, 2, &history[..], "meta/{}.his"),
        ] {
            body.push(u8::from(table.is_some()));
            let Some(table) = table else { continue };
            let (bytes, numbers) = self.table_bytes(table, first, trees);
            numbers.into_iter().for_each(|n| wire::uint(&mut body, n));
            files.insert(path.replace("{}", &format!("{:016x}", table.generation)), bytes);
        }
        let own = self.storages.iter().map(|storage| storage.id).zip(storages).skip(in_table_storages);
        let changed = own.map(|(id, (key, record))| (id, key, Some(record)));
        let removed =
            self.removed_storages.iter().map(|&id| (id, encoded(|out| wire::uint(out, id), |_| {}).0, None));
        write_changes(&mut body, changed.chain(removed).collect());
        let own = self.tensors.iter().map(|tensor| &tensor.name).zip(tensors).skip(in_table_tensors);
        let changed = own.map(|(name, (key, record))| (name, key, Some(record)));
        let removed = self
            .removed_tensors
            .iter()
            .map(|name| (name, encoded(|out| wire::text(out, name), |_| {}).0, None));
        write_changes(&mut body, changed.chain(removed).collect());
        wire::list(&mut body, &self.attributes, |out, ((scope, key), value)| {
            wire::text(out, scope.as_bytes());
            wire::text(out, key.as_bytes());
            wire::text(out, value.as_bytes());
        });
        for entries in history {
            let changes = entries.into_iter().filter(|_| self.history.is_none()).zip(0..);
            write_changes(
                &mut body,
                changes.map(|((key, record), place)| (place, key, Some(record))).collect(),
            );
        }
        manifest_of(&body)
    }

    fn encoded_storages(&self) -> Vec<Encoded> {
        let entry = |storage: &Storage| encoded(|out| wire::uint(out, storage.id), |out| storage.write(out));
        self.storages.iter().map(entry).collect()
    }

    fn encoded_tensors(&self) -> Vec<Encoded> {
        let entry = |tensor: &Tensor| encoded(|out| wire::text(out, &tensor.name), |out| tensor.write(out));
        self.tensors.iter().map(entry).collect()
    }

    fn encoded_tags(&self) -> Vec<Encoded> {
        let entry = |tag: &Tag| {
            encoded(
                |out| wire::text(out, &tag.name),
                |out| {
                    wire::uint(out, tag.generation);
                    write_message(out, tag.message.as_ref());
                },
            )
        };
        self.tags.iter().map(entry).collect()
    }

    fn encoded_kept(&self) -> Vec<Encoded> {
        let entry = |kept: &Kept| {
            encoded(
                |out| {
                    out.push(kept.is_tagged);
                    wire::uint(out, kept.generation);
                },
                |out| {
                    wire::int(out, kept.time_ns);
                    wire::uint(out, kept.next_id);
                    out.push(u8::from(kept.table.is_some()));
                    kept.table.into_iter().for_each(|table| wire::uint(out, table));
                    wire::uint(out, kept.tag_count);
                },
            )
        };
        self.kept.iter().map(entry).collect()
    }

    fn encoded_garbage(&self) -> Vec<Encoded> {
        let entry = |garbage: &Garbage| {
            encoded(
                |out| {
                    out.push(garbage.is_tagged);
                    wire::uint(out, garbage.dropped);
                    wire::uint(out, garbage.storage.id);
                },
                |out| garbage.storage.write(out),
            )
        };
        self.garbage.iter().map(entry).collect()
    }

    /// Returns a table with these trees, from tree `first` on, and the numbers of a manifest's reference to it.
    fn table_bytes(&self, table: &Table, first: usize, trees: &[Vec<Encoded>]) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = Vec::new();
        let mut references = [(0, 0); 5];
        let mut last = None;
        for (tree, entries) in (first..).zip(trees) {
            let count = entries.len() as u64;
            if count > 0 {
                let root = self.add_tree(table, tree as u16, entries.clone(), &mut bytes);
                (references[tree], last) = ((root, count), Some((tree, root)));
            }
        }
        if let Some((tree, root)) = last {
            let root_offset = root as usize * PAGE_BYTES;
            // Overwrite the correct values with wrong ones.
            let mut node = bytes.split_off(root_offset);
            for &(field, value) in &table.fields {
                let at = 48 + 2 * (field % 16);
                node[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
            }
            bytes.extend(redigested(node));
            bytes[root_offset] ^= u8::from(table.is_damaged);
            let (root, count) = &mut references[tree];
            *root = root.wrapping_add(table.more_root);
            *count = count.wrapping_add(table.more_last);
        }
        references[first].1 = references[first].1.wrapping_add(table.more_first);
        let page_count = ((bytes.len() / PAGE_BYTES) as u64).wrapping_add(table.more_pages);
        let trees = references.into_iter().flat_map(|(root, count)| [root, count]);
        (bytes, [table.generation, page_count].into_iter().chain(trees).collect())
    }

    /// Appends the nodes of a tree with entries to a table, and returns the page of the root.
    fn add_tree(&self, table: &Table, tree: u16, mut entries: Vec<Encoded>, out: &mut Vec<u8>) -> u64 {
        let mut level = 0;
        loop {
            let most = table.entries_per_node.max(if level == 0 { 1 } else { 2 });
            // An inner node has at least two children, so the last node of a level takes a child that would be alone.
            let is_one_left = level > 0 && entries.len() > most && entries.len() % most == 1;
            let last = if is_one_left { most + 1 } else { 0 };
            let (full, last) = entries.split_at(entries.len() - last);
            let nodes: Vec<_> = full.chunks(most).chain((!last.is_empty()).then_some(last)).collect();
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

/// Writes a map of changes: what they are sorted by, the encoded key, and the record, if the key is not removed.
fn write_changes<K: Ord>(body: &mut Vec<u8>, mut changes: Vec<(K, Vec<u8>, Option<Vec<u8>>)>) {
    changes.sort();
    wire::list(body, &changes, |out, (_, key, record)| {
        out.extend(key);
        out.push(u8::from(record.is_some()));
        record.iter().for_each(|record| out.extend(record));
    });
}
