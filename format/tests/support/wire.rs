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
    let trees = reference.trees.iter().flat_map(|tree| [tree.root_page, tree.entry_count]);
    let numbers = [reference.generation, reference.page_count].into_iter().chain(trees);
    some(numbers.flat_map(uint).collect())
}

/// A field that a bad vector replaces, and its new bytes.
pub(crate) type Change = (&'static str, Vec<u8>);

/// Returns the fields of a small valid manifest, in order: its whole body.
fn manifest_fields() -> Vec<Change> {
    let head = vec![
        ("uuid", UUID.to_vec()),
        ("generation", uint(GENERATION)),
        ("time", int(-3)),
        ("message", some(text("m"))),
        ("next_id", uint(NEXT_ID)),
        ("table", vec![0]),
        ("history", vec![0]),
    ];
    // A map with one entry, whose value is optional. The key is the first `key_fields` of the fields.
    let map = |count, mut fields: Vec<Change>, key_fields, option| {
        fields.insert(key_fields, (option, vec![1]));
        fields.insert(0, (count, uint(1)));
        fields
    };
    [
        head,
        map("storages", storage_fields(), 1, "storage_option"),
        map("tensors", tensor_fields(), 1, "tensor_option"),
        vec![("attributes", list(&[[text(""), text("k"), text("v")].concat()]))],
        map("tags", tag_fields(), 1, "tag_option"),
        map("kept", kept_fields(), 2, "kept_option"),
        map("garbage", garbage_fields(), 3, "garbage_option"),
        vec![("end", vec![])],
    ]
    .concat()
}

pub(crate) fn storage_fields() -> Vec<Change> {
    vec![
        ("storage", uint(1)),
        ("length", uint(24)),
        ("count", uint(1)),
        ("kind", sealed(0)),
        ("is_restored", vec![0]),
    ]
}

pub(crate) fn tag_fields() -> Vec<Change> {
    vec![("tag", text("v1")), ("tag_generation", uint(5)), ("tag_message", vec![0])]
}

pub(crate) fn kept_fields() -> Vec<Change> {
    vec![
        ("kept_is_tagged", vec![1]),
        ("kept_generation", uint(5)),
        ("kept_time", int(-4)),
        ("kept_next_id", uint(NEXT_ID)),
        ("kept_table", some(uint(5))),
        ("tag_count", uint(1)),
    ]
}

pub(crate) fn garbage_fields() -> Vec<Change> {
    vec![
        ("garbage_is_tagged", vec![1]),
        ("dropped", uint(GENERATION)),
        ("garbage_id", uint(2)),
        ("garbage_length", uint(24)),
        ("garbage_count", uint(0)),
        ("garbage_kind", sealed(0)),
        ("garbage_is_restored", vec![0]),
    ]
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

/// Returns the body of the small valid manifest up to a field, and `rest` in place of what follows.
pub(crate) fn manifest_up_to(field: &str, rest: &[u8]) -> Vec<u8> {
    let before = manifest_fields().into_iter().take_while(|(name, _)| *name != field);
    manifest_of(&[&before.flat_map(|(_, bytes)| bytes).collect::<Vec<_>>(), rest].concat())
}

/// Returns a manifest without changes on these tables.
pub(crate) fn manifest_on(table: Option<&TableRef>, history: Option<&TableRef>) -> Vec<u8> {
    let maps = ["storages", "tensors", "tags", "kept", "garbage"].map(without_entry).concat();
    let tables = [("table", table), ("history", history)];
    let tables = tables.map(|(field, table)| (field, table.map_or(vec![0], table_ref)));
    manifest(&[&maps[..], &tables].concat())
}

/// Returns a small manifest whose map `name` is `entries`.
pub(crate) fn manifest_with(name: &'static str, entries: Vec<u8>) -> Vec<u8> {
    manifest(&[&[(name, entries)], &without_entry(name)[1..]].concat())
}

/// Returns the changes that empty a map of the small manifest.
pub(crate) fn without_entry(name: &'static str) -> Vec<Change> {
    let own = match name {
        "storages" => [storage_fields(), vec![("storage_option", vec![])]],
        "tensors" => [tensor_fields(), vec![("tensor_option", vec![])]],
        "tags" => [tag_fields(), vec![("tag_option", vec![])]],
        "kept" => [kept_fields(), vec![("kept_option", vec![])]],
        "garbage" => [garbage_fields(), vec![("garbage_option", vec![])]],
        _ => [vec![], vec![]],
    };
    let fields = own.concat().into_iter().map(|(field, _)| (field, vec![]));
    [(name, uint(0))].into_iter().chain(fields).collect()
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

/// Returns a table of storages and tensors, each in one leaf, and a manifest's reference to it.
pub(crate) fn table(storages: &[Vec<u8>], tensors: &[Vec<u8>]) -> (Vec<u8>, TableRef) {
    leaves(0, &[storages, tensors])
}

/// Returns a table of tags, kept generations and garbage, each in one leaf, and a manifest's reference to it.
pub(crate) fn history(tags: &[Vec<u8>], kept: &[Vec<u8>], garbage: &[Vec<u8>]) -> (Vec<u8>, TableRef) {
    leaves(2, &[tags, kept, garbage])
}

/// Returns a table of one leaf for each tree with entries, from tree `first` on.
fn leaves(first: u16, trees: &[&[Vec<u8>]]) -> (Vec<u8>, TableRef) {
    let (mut bytes, mut roots) = (Vec::new(), Vec::new());
    for (tree, entries) in (first..).zip(trees) {
        let page = (bytes.len() / PAGE_BYTES) as u64;
        roots.push(if entries.is_empty() { (0, 0) } else { (page, entries.len()) });
        if !entries.is_empty() {
            bytes.extend(node((page, tree, 0), entries));
        }
    }
    let reference = reference(&bytes, first, &roots);
    (bytes, reference)
}

/// Returns the reference to a table of generation 7, with these trees from tree `first` on.
pub(crate) fn reference(table: &[u8], first: u16, trees: &[(u64, usize)]) -> TableRef {
    let mut reference = TableRef {
        generation: GENERATION,
        page_count: table.len().div_ceil(PAGE_BYTES) as u64,
        trees: Default::default(),
    };
    for (tree, &(root_page, entry_count)) in reference.trees[usize::from(first)..].iter_mut().zip(trees) {
        *tree = TreeRef { root_page, entry_count: entry_count as u64 };
    }
    reference
}
