//! Writes a model as several files and an index.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use stridemap::{Error, OnExisting, Result};

use super::write::{Entry, Part};
use super::{ENDING, INDEX_ENDING, MAX_HEADER_BYTES, MAX_PARTS, place};
use crate::file::{self, unwritable};

/// Splits tensors, in order, into shards of at most `max_bytes`. A larger tensor gets a shard of its own.
pub(super) fn split(entries: Vec<Entry<'_>>, max_bytes: Option<u64>) -> Vec<Vec<Entry<'_>>> {
    let (mut parts, mut part_bytes) = (vec![Vec::new()], 0u64);
    for entry in entries {
        let size_bytes = entry.tensor.nbytes() as u64;
        let end_bytes = part_bytes.saturating_add(size_bytes);
        match parts.last_mut() {
            Some(part) if part.is_empty() || max_bytes.is_none_or(|most| end_bytes <= most) => {
                part.push(entry);
                part_bytes = end_bytes;
            }
            _ => {
                parts.push(vec![entry]);
                part_bytes = size_bytes;
            }
        }
    }
    parts
}

/// Writes each shard and the index, and renames them together.
pub(super) fn write(
    path: &Path,
    parts: Vec<Vec<Entry<'_>>>,
    metadata: &BTreeMap<String, String>,
    on_existing: OnExisting,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<PathBuf>> {
    let count = parts.len();
    if count > MAX_PARTS {
        let what = format!("{count} shards, but at most {MAX_PARTS} are allowed; make them larger");
        return Err(unwritable(path, what));
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(unwritable(
            path,
            "the file name is not UTF-8, and cannot be stored in the index".to_owned(),
        ));
    };
    let stem = name.strip_suffix(ENDING).unwrap_or(name);
    let parts = (1..).zip(parts).map(|(number, entries)| {
        let part = Part::new(path, entries, metadata)?;
        Ok((format!("{stem}-{number:05}-of-{count:05}{ENDING}"), part))
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let index = index_of(path, &parts)?;

    let mut targets: Vec<PathBuf> = parts.iter().map(|(name, _)| path.with_file_name(name)).collect();
    targets.push(path.with_file_name(format!("{stem}{INDEX_ENDING}")));
    targets.iter().try_for_each(|target| file::check_place(target, on_existing))?;
    let mut staged = Vec::with_capacity(targets.len());
    for ((_, part), target) in parts.iter().zip(&targets) {
        let written = file::stage(target, |writer| {
            writer.write_all(&part.header).map_err(|e| Error::io("export", target, e))?;
            part.tensors().try_for_each(|tensor| file::write_elements(target, writer, tensor, progress))
        });
        staged.push(written?.into_temp_path());
    }
    if let Some(target) = targets.last() {
        let written = file::stage(target, |writer| {
            writer.write_all(&index).map_err(|e| Error::io("export", target, e))
        });
        staged.push(written?.into_temp_path());
    }
    place::together(staged, &targets, on_existing)?;
    Ok(targets)
}

fn index_of(path: &Path, parts: &[(String, Part<'_>)]) -> Result<Vec<u8>> {
    let sizes = parts.iter().flat_map(|(_, part)| part.tensors().map(|tensor| tensor.nbytes() as u64));
    let total_bytes = sizes.fold(0, u64::saturating_add);
    let weight_map: BTreeMap<&str, &str> =
        parts.iter().flat_map(|(file, part)| part.names().map(|name| (name, file.as_str()))).collect();
    let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
    let mut text =
        serde_json::to_vec_pretty(&index).map_err(|e| unwritable(path, e.to_string()).with_source(e))?;
    text.push(b'\n');
    if text.len() as u64 > MAX_HEADER_BYTES {
        let what = format!("an index of {} bytes; at most {MAX_HEADER_BYTES} are allowed", text.len());
        return Err(unwritable(path, what));
    }
    Ok(text)
}
