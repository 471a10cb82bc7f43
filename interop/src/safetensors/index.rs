//! Models in several files, called shards: a JSON index says which shard holds which tensor. The shards are safetensors
//! files, as `model.safetensors.index.json` names them, or checkpoints, as `pytorch_model.bin.index.json` does.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::de::{Error as _, MapAccess};
use serde_json::value::RawValue;
use stridemap::{Error, Result};

use super::json::{FromEntries, Object, parse, parse_pieces};
use super::{MAX_HEADER_BYTES, MAX_SHARDS, PREAMBLE_BYTES};
use crate::contents::Contents;
use crate::file::RawFile;
use crate::{FileFormat, ForeignOptions};

/// Returns whether a file of `length_bytes` begins with the length of a header that fits in it, followed by a brace.
pub(crate) fn is_file(magic: &[u8], length_bytes: u64) -> bool {
    let Some((header_bytes, [b'{', ..])) = magic.split_first_chunk::<PREAMBLE_BYTES>() else { return false };
    let rest_bytes = length_bytes.saturating_sub(PREAMBLE_BYTES as u64);
    u64::from_le_bytes(*header_bytes) <= rest_bytes.min(MAX_HEADER_BYTES)
}

/// Returns whether a file begins with a JSON object, and not with a header length whose first byte equals a brace.
pub(crate) fn is_index(magic: &[u8]) -> bool {
    magic.first() == Some(&b'{') && !is_length(magic)
}

/// Returns whether a file begins with the length of a header.
pub(crate) fn is_length(magic: &[u8]) -> bool {
    magic.first_chunk().is_some_and(|bytes| u64::from_le_bytes(*bytes) <= MAX_HEADER_BYTES)
}

/// Opens all shards, which are beside the index, as one file.
///
/// The tensors are those of the shards' own headers, as in transformers, including tensors that the index lacks. A
/// tensor in the index must be in the shard that the index names, and a name may be in only one shard.
pub(crate) fn read(file: &Arc<RawFile>, options: ForeignOptions) -> Result<Contents> {
    let json = file.header_range(0, file.length_bytes(), MAX_HEADER_BYTES)?;
    let Index { metadata, weight_map: Object(WeightMap { mut shard_of, shards }) } =
        parse_pieces(file, "the index of a sharded model", json)?;
    let mut contents = Contents::new(FileFormat::ShardIndex);
    let mut rest_bytes = MAX_HEADER_BYTES;
    let name_of = |wanted| shards.iter().find(|(_, index)| **index == wanted).map_or("", |(shard, _)| shard);
    for (shard, index) in &shards {
        let opened = open(file, shard, rest_bytes, options)?;
        if opened.format == FileFormat::Safetensors {
            // The elements follow the header, so their offset is the number of bytes before them.
            let header_bytes = opened.storages.first().map_or(0, |elements| elements.offset_bytes);
            rest_bytes = rest_bytes.saturating_sub(header_bytes);
        }
        let skipped = opened.skipped.iter().map(|skipped| &skipped.name);
        for name in opened.tensors.iter().map(|tensor| &tensor.name).chain(skipped) {
            match shard_of.get(name) {
                Some(stated) if stated != index => {
                    let stated = name_of(*stated);
                    return Err(file.bad(format!(
                        "tensor {name:?} is in {shard:?}, but weight_map says that it is in {stated:?}"
                    )));
                }
                Some(_) => shard_of.remove(name),
                None => None,
            };
        }
        let first_storage = contents.storages.len();
        contents.storages.extend(opened.storages);
        contents.tensors.extend(opened.tensors.into_iter().map(|mut tensor| {
            tensor.storage += first_storage;
            tensor
        }));
        contents.attributes.extend(opened.attributes);
        contents.too_long.extend(opened.too_long);
        contents.skipped.extend(opened.skipped);
    }
    if let Some((name, index)) = shard_of.first_key_value() {
        let stated = name_of(*index);
        return Err(file.bad(format!(
            "weight_map says that tensor {name:?} is in {stated:?}, which does not contain it"
        )));
    }
    if let Some(metadata) = metadata {
        for (key, value) in
            parse::<Object<BTreeMap<String, &RawValue>>>(file, "metadata", metadata.get().as_bytes())?.0
        {
            match value.get().bytes().next() {
                Some(b'"') => {
                    let text = parse(file, format_args!("metadata {key:?}"), value.get().as_bytes())?;
                    contents.attributes.insert(key, text);
                }
                // Lists, objects and null are left out.
                Some(b'{' | b'[' | b'n') | None => {}
                Some(_) => drop(contents.attributes.insert(key, value.get().to_owned())),
            }
        }
    }
    Ok(contents)
}

/// Reads the header of a shard. It must have at most `rest_bytes`, which are left for headers.
fn open(index: &RawFile, shard: &str, rest_bytes: u64, options: ForeignOptions) -> Result<Contents> {
    let missing = |e: &Error| e.io_error().is_some_and(|cause| cause.kind() == io::ErrorKind::NotFound);
    let file = RawFile::open(&index.path().with_file_name(shard)).map_err(|e| match missing(&e) {
        true => index.bad(format!("weight_map names {shard:?}, which is not in the directory of the index")),
        false => e,
    })?;
    options.read(&Arc::new(file), rest_bytes)
}

#[derive(serde::Deserialize)]
struct Index {
    #[serde(default)]
    metadata: Option<Box<RawValue>>,
    weight_map: Object<WeightMap>,
}

/// The shard of each tensor. There can be a million tensors, but few shards, so shards are numbered.
#[derive(Default)]
struct WeightMap {
    shard_of: BTreeMap<String, usize>,
    shards: BTreeMap<String, usize>,
}

impl<'de> FromEntries<'de> for WeightMap {
    const EXPECTED: &'static str = "an object of names and file names";

    fn has(&self, name: &str) -> bool {
        self.shard_of.contains_key(name)
    }

    fn add<A: MapAccess<'de>>(&mut self, name: String, entries: &mut A) -> std::result::Result<(), A::Error> {
        let shard: String = entries.next_value()?;
        check_shard(&shard).map_err(A::Error::custom)?;
        let next = self.shards.len();
        let index = *self.shards.entry(shard).or_insert(next);
        if index >= MAX_SHARDS {
            return Err(A::Error::custom(format_args!("more than {MAX_SHARDS} shards")));
        }
        self.shard_of.insert(name, index);
        Ok(())
    }
}

/// Checks that a shard is named by a file name without a directory. Only files beside the index are ever opened.
fn check_shard(shard: &str) -> std::result::Result<(), String> {
    let is_file_name = !shard.is_empty() && shard != "." && shard != ".." && !shard.contains(['/', '\0']);
    if is_file_name {
        return Ok(());
    }
    Err(format!("the shard {shard:?} is not the name of a file in the directory of the index"))
}
