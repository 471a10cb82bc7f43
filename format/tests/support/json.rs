//! Decoded content in the JSON form of `vectors/README.md`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stridemap_format::{
    Attributes, Manifest, Marker, RecordKind, StorageRecord, TableRef, TensorRecord, TreeRef,
};

use super::table::Table;

pub(crate) fn marker(marker: &Marker) -> Value {
    json!({ "uuid": hex(&marker.uuid) })
}

pub(crate) fn manifest(manifest: &Manifest) -> Value {
    json!({
        "uuid": hex(&manifest.uuid),
        "generation": manifest.generation,
        "next_storage_id": manifest.next_storage_id,
        "table": manifest.table.as_ref().map(table_ref),
        "storages": object(&manifest.storages, |record| record.as_ref().map_or(Value::Null, storage)),
        "tensors": object(&manifest.tensors, |record| record.as_ref().map_or(Value::Null, tensor)),
        "attributes": by_scope(&manifest.attributes),
        "garbage": manifest.garbage,
    })
}

pub(crate) fn table(table: &Table, reference: &TableRef) -> Value {
    json!({
        "uuid": hex(&table.uuid),
        "reference": table_ref(reference),
        "next_storage_id": table.next_storage_id,
        "storages": object(&table.storages, storage),
        "tensors": object(&table.tensors, tensor),
    })
}

/// Returns the attributes of each scope, by key.
fn by_scope(attributes: &Attributes) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let mut scopes: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for ((scope, key), value) in attributes {
        scopes.entry(scope).or_default().insert(key, value);
    }
    scopes
}

pub(crate) fn table_ref(reference: &TableRef) -> Value {
    let tree = |tree: &TreeRef| json!({ "root_page": tree.root_page, "entry_count": tree.entry_count });
    json!({
        "generation": reference.generation,
        "page_count": reference.page_count,
        "storages": tree(&reference.storages),
        "tensors": tree(&reference.tensors),
    })
}

fn storage(record: &StorageRecord) -> Value {
    let mut value = match &record.kind {
        RecordKind::Sealed(sealed) => json!({
            "kind": "sealed",
            "chunks": hex(&sealed.chunks),
            "tail": hex(&sealed.tail),
            "reserved_bytes": sealed.reserved_bytes,
        }),
        RecordKind::Mutable => json!({ "kind": "mutable" }),
        RecordKind::Live { access_bytes } => json!({ "kind": "live", "access_bytes": access_bytes }),
        RecordKind::External(external) => json!({
            "kind": "external",
            "path": external.path,
            "offset_bytes": external.offset_bytes,
            "inode": external.stamp.inode,
            "size_bytes": external.stamp.size_bytes,
            "mtime_ns": external.stamp.mtime_ns,
        }),
    };
    value["length_bytes"] = record.length_bytes.into();
    value["tensor_count"] = record.tensor_count.into();
    value
}

fn tensor(record: &TensorRecord) -> Value {
    let header = &record.header;
    json!({
        "dtype": header.dtype().name(),
        "size": header.size(),
        "stride": header.stride(),
        "offset_elems": header.storage_offset(),
        "storage_id": record.storage_id,
        "dim_names": header.dim_names(),
    })
}

fn object<'a, K: ToString + 'a, V: 'a>(
    entries: impl IntoIterator<Item = (&'a K, &'a V)>,
    value: impl Fn(&V) -> Value,
) -> Map<String, Value> {
    entries.into_iter().map(|(key, entry)| (key.to_string(), value(entry))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Returns bytes as pieces in hexadecimal, each with the number of times that it occurs.
pub(crate) fn runs(bytes: &[u8]) -> Vec<(String, usize)> {
    const LEAST_BYTES: usize = 64;
    let mut runs = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        // The number of bytes from `at` on that repeat those `period` before them.
        let repeated = |period: usize| {
            let pairs = bytes[at..].iter().zip(bytes.get(at + period..).unwrap_or_default());
            pairs.take_while(|(byte, later)| byte == later).count()
        };
        match [1, 2, 4].into_iter().find(|&period| repeated(period) >= LEAST_BYTES) {
            None => at += 1,
            Some(period) => {
                let count = repeated(period) / period + 1;
                runs.push((hex(&bytes[start..at]), 1));
                runs.push((hex(&bytes[at..at + period]), count));
                at += period * count;
                start = at;
            }
        }
    }
    runs.push((hex(&bytes[start..]), 1));
    runs
}
