//! A second encoder, written only from `SPEC.md`. It also writes what the crate refuses to write.

use stridemap_format::{TableRef, Uuid, digest};

use super::frame::{digested, entry_of, manifest_of};

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
    [uint(3), text(path), uint(offset_bytes), uint(1), uint(2), uint(size_bytes), int(-1)].concat()
}

/// Encodes a sealed storage without a full chunk.
pub(crate) fn sealed(reserved_bytes: u64) -> Vec<u8> {
    [uint(0), vec![0; 16], vec![0xaa; 16], uint(reserved_bytes)].concat()
}

pub(crate) fn live(access_bytes: u8) -> Vec<u8> {
    [uint(2), vec![access_bytes]].concat()
}

pub(crate) fn table_ref(generation: u64) -> Vec<u8> {
    some([uint(generation), uint(72), vec![0xdd; 16]].concat())
}

/// A field that a bad vector replaces, and its new bytes.
pub(crate) type Change = (&'static str, Vec<u8>);

/// Returns the fields of a small valid manifest, in order: its whole body.
fn manifest_fields() -> Vec<Change> {
    let head = [
        ("uuid", UUID.to_vec()),
        ("generation", uint(GENERATION)),
        ("parent", uint(6)),
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

pub(crate) fn marker(magic: &[u8], version: u32, reserved: u32) -> Vec<u8> {
    digested(&[magic, &version.to_le_bytes(), &reserved.to_le_bytes(), &UUID].concat())
}

/// Returns `bytes` with those at `offset` replaced by `patch`.
pub(crate) fn overwritten(mut bytes: Vec<u8>, offset: usize, patch: &[u8]) -> Vec<u8> {
    bytes[offset..offset + patch.len()].copy_from_slice(patch);
    bytes
}

/// Returns a table of these records. The first `storages` records are storages, the others tensors. `gaps` are the bytes
/// before and after the entries.
pub(crate) fn table_with_gaps(records: &[Vec<u8>], storages: u64, gaps: [&[u8]; 2]) -> Vec<u8> {
    let mut entries = gaps[0].to_vec();
    let mut slots = vec![64 + entries.len() as u64];
    for (ordinal, record) in records.iter().enumerate() {
        entries.extend(entry_of(record, GENERATION, ordinal as u64));
        slots.push(64 + entries.len() as u64);
    }
    entries.extend(gaps[1]);
    let length = 64 + entries.len() as u64 + 8 * slots.len() as u64;
    let numbers = [GENERATION, storages, records.len() as u64 - storages, length].map(u64::to_le_bytes);
    let index: Vec<u8> = slots.into_iter().flat_map(u64::to_le_bytes).collect();
    [b"SMAPTAB\n\x01\0\0\0\0\0\0\0", &UUID[..], numbers.as_flattened(), &entries, &index].concat()
}

pub(crate) fn table(records: &[Vec<u8>], storages: u64) -> Vec<u8> {
    table_with_gaps(records, storages, [b"", b""])
}

/// Returns a manifest's reference to a table of generation 7 with this header and length.
pub(crate) fn reference(table: &[u8]) -> TableRef {
    let header_digest = digest(table.get(..64).unwrap_or(table));
    TableRef { generation: GENERATION, length_bytes: table.len() as u64, header_digest }
}
