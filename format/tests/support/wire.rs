//! A second encoder, written only from `SPEC.md`. It also writes what the crate refuses to write.

use stridemap_format::{PAGE_BYTES, TableRef, TreeRef, Uuid};

use super::frame::{digested, manifest_of, node_of};

/// The store, the generation and the next id of every bad vector.
pub(crate) const UUID: Uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
pub(crate) const GENERATION: u64 = 7;
pub(crate) const NEXT_ID: u64 = 400;

pub(crate) fn uint(n: u64) -> Vec<u8> {
    match n {
        0..=250 => vec![n as u8],
        251..=0xffff => long(n, 2),
        0x1_0000..=0xffff_ffff => long(n, 4),
        _ => long(n, 8),
    }
}

/// Encodes an integer in `width` bytes after its marker, whether or not it needs that many.
pub(crate) fn long(n: u64, width: usize) -> Vec<u8> {
    let marker = [(2, 251), (4, 252), (8, 253)].into_iter().find(|&(w, _)| w == width).unwrap().1;
    [&[marker], &n.to_le_bytes()[..width]].concat()
}

pub(crate) fn int(n: i64) -> Vec<u8> {
    let zigzag = if n >= 0 { 2 * i128::from(n) } else { -2 * i128::from(n) - 1 };
    uint(zigzag.try_into().unwrap())
}

pub(crate) fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    [&uint(text.as_ref().len() as u64), text.as_ref()].concat()
}

/// Encodes a list, or a map whose items are pairs of key and value.
pub(crate) fn list(items: &[Vec<u8>]) -> Vec<u8> {
    [uint(items.len() as u64), items.concat()].concat()
}

pub(crate) fn uints(numbers: &[u64]) -> Vec<u8> {
    list(&numbers.iter().map(|&n| uint(n)).collect::<Vec<_>>())
}

pub(crate) fn ints(numbers: &[i64]) -> Vec<u8> {
    list(&numbers.iter().map(|&n| int(n)).collect::<Vec<_>>())
}

pub(crate) fn some(value: Vec<u8>) -> Vec<u8> {
    [vec![1], value].concat()
}

/// Encodes dimension names, all of them present.
pub(crate) fn dim_names(names: &[&str]) -> Vec<u8> {
    some(list(&names.iter().map(|name| some(text(name))).collect::<Vec<_>>()))
}

pub(crate) fn external(path: &[u8], offset_bytes: u64, size_bytes: u64) -> Vec<u8> {
    [uint(3), text(path), uint(offset_bytes), uint(2), uint(size_bytes), int(-1)].concat()
}

/// Encodes a sealed storage without a full chunk.
pub(crate) fn sealed(reserved_bytes: u64) -> Vec<u8> {
    [uint(0), vec![0; 16], vec![0xaa; 16], uint(reserved_bytes)].concat()
}

pub(crate) fn live(access_bytes: u8) -> Vec<u8> {
    [uint(2), vec![access_bytes]].concat()
}

/// Encodes a manifest's reference to a table.
pub(crate) fn table_ref(reference: &TableRef) -> Vec<u8> {
    let TableRef { generation, page_count, storages, tensors } = *reference;
    let trees = [storages.root_page, storages.entry_count, tensors.root_page, tensors.entry_count];
    some([uint(generation), uint(page_count), trees.map(uint).concat()].concat())
}

/// A field that a bad vector replaces, and its new bytes.
pub(crate) type Change = (&'static str, Vec<u8>);

/// Returns the fields of a small valid manifest, in order: its whole body.
fn manifest_fields() -> Vec<Change> {
    let head = [
        ("uuid", UUID.to_vec()),
        ("generation", uint(GENERATION)),
        ("next_id", uint(NEXT_ID)),
        ("table", vec![0]),
        ("storages", uint(1)),
    ];
    let (storage, tensor) = (storage_fields(), tensor_fields());
    let tail = [
        ("attributes", list(&[[text(""), text("k"), text("v")].concat()])),
        ("garbage", list(&[])),
        ("end", vec![]),
    ];
    let optional = |mut fields: Vec<Change>, tag: &'static str| {
        fields.insert(1, (tag, vec![1]));
        fields
    };
    head.into_iter()
        .chain(optional(storage, "storage_tag"))
        .chain([("tensors", uint(1))])
        .chain(optional(tensor, "tensor_tag"))
        .chain(tail)
        .collect()
}

pub(crate) fn storage_fields() -> Vec<Change> {
    vec![("storage", uint(1)), ("length", uint(24)), ("count", uint(1)), ("kind", sealed(0))]
}

pub(crate) fn tensor_fields() -> Vec<Change> {
    vec![
        ("name", text("t")),
        ("dtype", vec![11]),
        ("size", uints(&[3, 2])),
        ("stride", ints(&[2, 1])),
        ("offset", uint(0)),
        ("on", uint(1)),
        ("dim_names", vec![0]),
    ]
}

/// Returns the bytes of `fields` with `changes` applied, and the number of fields that changed.
pub(crate) fn changed(mut fields: Vec<Change>, changes: &[Change]) -> (Vec<u8>, usize) {
    let mut found = 0;
    for (name, bytes) in &mut fields {
        if let Some((_, replacement)) = changes.iter().find(|(changed, _)| changed == name) {
            bytes.clone_from(replacement);
            found += 1;
        }
    }
    (fields.into_iter().flat_map(|(_, bytes)| bytes).collect(), found)
}

/// Returns a small manifest, valid except for `changes`.
pub(crate) fn manifest(changes: &[Change]) -> Vec<u8> {
    let (body, found) = changed(manifest_fields(), changes);
    assert_eq!(found, changes.len(), "a manifest lacks one of {changes:?}");
    manifest_of(&body)
}

pub(crate) fn marker(magic: &[u8], version: u64) -> Vec<u8> {
    digested(&[magic, &version.to_le_bytes(), &UUID].concat())
}

/// Returns `bytes` with those at `offset` replaced by `patch`.
pub(crate) fn overwritten(mut bytes: Vec<u8>, offset: usize, patch: &[u8]) -> Vec<u8> {
    bytes[offset..offset + patch.len()].copy_from_slice(patch);
    bytes
}

/// Returns a node of a table. `place` is its page, tree and level.
pub(crate) fn node(place: (u64, u16, u16), entries: &[Vec<u8>]) -> Vec<u8> {
    node_of(UUID, GENERATION, place, entries)
}

/// Encodes the entry of a child in an inner node.
pub(crate) fn child(key: Vec<u8>, page: u64) -> Vec<u8> {
    [key, uint(page)].concat()
}

/// Returns a table of two leaves, and a manifest's reference to it.
pub(crate) fn table(storages: &[Vec<u8>], tensors: &[Vec<u8>]) -> (Vec<u8>, TableRef) {
    let storage_leaf = node((0, 0, 0), storages);
    let tensor_page = (storage_leaf.len() / PAGE_BYTES) as u64;
    let bytes = [storage_leaf, node((tensor_page, 1, 0), tensors)].concat();
    let reference = reference(&bytes, (0, storages.len()), (tensor_page, tensors.len()));
    (bytes, reference)
}

/// Returns the reference to a table of generation 7. Each tree is the page of its root and the number of its entries.
pub(crate) fn reference(table: &[u8], storages: (u64, usize), tensors: (u64, usize)) -> TableRef {
    let tree =
        |(root_page, entry_count): (u64, usize)| TreeRef { root_page, entry_count: entry_count as u64 };
    TableRef {
        generation: GENERATION,
        page_count: table.len().div_ceil(PAGE_BYTES) as u64,
        storages: tree(storages),
        tensors: tree(tensors),
    }
}
