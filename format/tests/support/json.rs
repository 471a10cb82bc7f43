//! Decoded content in the JSON form of `vectors/README.md`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stridemap_format::{
    Attributes, GarbageKey, KeptGeneration, KeptKey, Manifest, Marker, RecordKind, StorageRecord, TableRef,
    Tag, TensorRecord, Tree,
};

use super::hex::hex;
use super::table::Table;

pub(crate) fn marker(marker: &Marker) -> Value {
    json!({ "uuid": hex(&marker.uuid) })
}

pub(crate) fn manifest(manifest: &Manifest) -> Value {
    json!({
        "uuid": hex(&manifest.uuid),
        "generation": manifest.generation,
        "time_ns": manifest.time_ns,
        "message": manifest.message,
        "next_storage_id": manifest.next_storage_id,
        "table": manifest.table.as_ref().map(table_ref),
        "history": manifest.history.as_ref().map(table_ref),
        "storages": object(&manifest.storages, optional(storage)),
        "tensors": object(&manifest.tensors, optional(tensor)),
        "attributes": by_scope(&manifest.attributes),
        "tags": object(&manifest.tags, optional(tag)),
        "kept": pairs(&manifest.kept, kept_key, optional(kept)),
        "garbage": pairs(&manifest.garbage, garbage_key, optional(storage)),
    })
}

/// Returns the values of a table, with those maps that a table of its kind can have.
pub(crate) fn table(table: &Table, reference: &TableRef) -> Value {
    let mut value = json!({
        "uuid": hex(&table.uuid),
        "reference": table_ref(reference),
        "next_storage_id": table.bounds.next_storage_id,
    });
    if !(table.tags.is_empty() && table.kept.is_empty() && table.garbage.is_empty()) {
        value["tags"] = object(&table.tags, tag).into();
        value["kept"] = pairs(&table.kept, kept_key, kept).into();
        value["garbage"] = pairs(&table.garbage, garbage_key, storage).into();
    } else {
        value["storages"] = object(&table.storages, storage).into();
        value["tensors"] = object(&table.tensors, tensor).into();
    }
    value
}

/// Returns the attributes of each scope, by key.
fn by_scope(attributes: &Attributes) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let mut scopes: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for ((scope, key), value) in attributes {
        scopes.entry(scope).or_default().insert(key, value);
    }
    scopes
}

/// Returns a reference, with the trees that have entries.
pub(crate) fn table_ref(reference: &TableRef) -> Value {
    let names = ["storages", "tensors", "tags", "kept", "garbage"];
    let mut value = json!({ "generation": reference.generation, "page_count": reference.page_count });
    for (name, tree) in names.iter().zip(Tree::ALL).map(|(name, tree)| (name, reference.tree(tree))) {
        if tree.root_page > 0 || tree.entry_count > 0 {
            value[name] = json!({ "root_page": tree.root_page, "entry_count": tree.entry_count });
        }
    }
    value
}

fn tag(tag: &Tag) -> Value {
    json!({ "generation": tag.generation, "message": tag.message })
}

fn kept_key(key: &KeptKey) -> Value {
    json!({ "is_tagged": key.is_tagged, "generation": key.generation })
}

fn kept(kept: &KeptGeneration) -> Value {
    json!({
        "time_ns": kept.time_ns,
        "next_storage_id": kept.next_storage_id,
        "table": kept.table,
        "tag_count": kept.tag_count,
    })
}

fn garbage_key(key: &GarbageKey) -> Value {
    json!({ "is_tagged": key.is_tagged, "dropped": key.dropped, "id": key.id })
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
    value["is_restored"] = record.is_restored.into();
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

/// Returns the entries of a map whose keys are not texts or single numbers, in ascending order of key.
fn pairs<'a, K: 'a, V: 'a>(
    entries: impl IntoIterator<Item = (&'a K, &'a V)>,
    key: impl Fn(&K) -> Value,
    value: impl Fn(&V) -> Value,
) -> Vec<[Value; 2]> {
    entries.into_iter().map(|(own, entry)| [key(own), value(entry)]).collect()
}

/// Returns a function for the values in a map of changes.
fn optional<V>(value: impl Fn(&V) -> Value) -> impl Fn(&Option<V>) -> Value {
    move |entry| entry.as_ref().map_or(Value::Null, &value)
}
