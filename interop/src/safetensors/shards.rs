//! Writes a model as several files and an index.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;
use stridemap::{OnExisting, Result};

use super::write::{Entry, Shard};
use super::{ENDING, INDEX_ENDING, MAX_HEADER_BYTES, MAX_SHARDS, place};
use crate::file::{self, unwritable};

/// Splits tensors, in order, into shards of at most `max_bytes`. A larger tensor gets a shard of its own.
pub(super) fn split(entries: Vec<Entry<'_>>, max_bytes: Option<u64>) -> Vec<Vec<Entry<'_>>> {
    let (mut shards, mut shard_bytes) = (vec![Vec::new()], 0u64);
    for entry in entries {
        let size_bytes = entry.tensor.nbytes() as u64;
        let end_bytes = shard_bytes.saturating_add(size_bytes);
        match shards.last_mut() {
            Some(shard) if shard.is_empty() || max_bytes.is_none_or(|most| end_bytes <= most) => {
                shard.push(entry);
                shard_bytes = end_bytes;
            }
            _ => {
                shards.push(vec![entry]);
                shard_bytes = size_bytes;
            }
        }
    }
    shards
}

/// Returns the paths of `count` shards, and that of the index.
pub(super) fn paths(path: &Path, count: usize) -> Result<Vec<PathBuf>> {
    if count > MAX_SHARDS {
        let what = format!("{count} shards, but at most {MAX_SHARDS} are allowed; make them larger");
        return Err(unwritable(path, what));
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(unwritable(
            path,
            "the file name is not UTF-8, and cannot be stored in the index".to_owned(),
        ));
    };
    let stem = name.strip_suffix(ENDING).unwrap_or(name);
    let shards = (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}{ENDING}"));
    let names = shards.chain([format!("{stem}{INDEX_ENDING}")]);
    Ok(names.map(|name| path.with_file_name(name)).collect())
}

/// Writes each shard and the index, and renames them together.
pub(super) fn write(
    path: &Path,
    shards: Vec<Vec<Entry<'_>>>,
    metadata: &BTreeMap<String, String>,
    on_existing: OnExisting,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<PathBuf>> {
    let targets = paths(path, shards.len())?;
    let shards = targets.iter().zip(shards).map(|(target, entries)| {
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, Shard::new(path, entries, metadata)?))
    });
    let shards = shards.collect::<Result<Vec<_>>>()?;
    let index = index_of(path, &shards)?;
    targets.iter().try_for_each(|target| file::check_replaceable(target, on_existing))?;
    let mut staged = Vec::with_capacity(targets.len());
    let parts = shards.iter().map(|(_, shard)| (&shard.header, Some(shard))).chain([(&index, None)]);
    for ((header, shard), target) in parts.zip(&targets) {
        let tensors = shard.into_iter().flat_map(Shard::tensors);
        let written = file::stage(target, |writer| file::write_to(target, writer, header, tensors, progress));
        staged.push(written?.into_temp_path());
    }
    place::rename_all(staged, &targets, on_existing)?;
    Ok(targets)
}

fn index_of(path: &Path, shards: &[(String, Shard<'_>)]) -> Result<Vec<u8>> {
    let sizes = shards.iter().flat_map(|(_, shard)| shard.tensors().map(|tensor| tensor.nbytes() as u64));
    let total_bytes = sizes.fold(0, u64::saturating_add);
    let weight_map: BTreeMap<&str, &str> =
        shards.iter().flat_map(|(file, shard)| shard.names().map(|name| (name, file.as_str()))).collect();
    let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
    let mut text = serde_json::to_vec_pretty(&index).map_err(|e| unwritable(path, e.to_string()))?;
    text.push(b'\n');
    if text.len() as u64 > MAX_HEADER_BYTES {
        let what = format!("an index of {} bytes; at most {MAX_HEADER_BYTES} are allowed", text.len());
        return Err(unwritable(path, what));
    }
    Ok(text)
}
