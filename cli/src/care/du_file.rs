//! The bytes of a file in another format, for `du`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;

use serde_json::json;

use crate::by_storage::by_storage;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::look::sharing::StorageUsage;
use crate::ui::{bytes_cell, print_line, write_json};

/// The bytes of a block, in which the system counts disk space.
const BLOCK_BYTES: u64 = 512;

/// Prints the bytes of the elements, of the files, and on the disk.
pub(super) fn run(input: &Input, is_json: bool, out: &mut impl Write) -> Result<()> {
    let mut by_storage = by_storage(input.tensors("")?)?;
    let (mut reachable_bytes, mut unreachable_bytes) = (0u64, 0u64);
    // The index of a sharded model is a file, too.
    let mut paths = BTreeSet::from([input.path().to_path_buf()]);
    for storage in input.storages() {
        let storage = storage?;
        let usage = StorageUsage::of(&storage, &by_storage.remove(&storage.id).unwrap_or_default())?;
        reachable_bytes = reachable_bytes.saturating_add(usage.reachable_bytes);
        unreachable_bytes =
            unreachable_bytes.saturating_add(usage.unreachable_bytes.saturating_add(usage.padding_bytes));
        paths.insert(storage.file);
    }
    let (mut file_bytes, mut disk_bytes) = (0u64, 0u64);
    for path in &paths {
        let found = fs::metadata(path).map_err(|e| Error::at("du", path, e))?;
        file_bytes = file_bytes.saturating_add(found.len());
        disk_bytes = disk_bytes.saturating_add(found.blocks().saturating_mul(BLOCK_BYTES));
    }
    if is_json {
        let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
        let record = json!({ "format": input.format(), "reachable_bytes": reachable_bytes,
            "unreachable_bytes": unreachable_bytes, "file_bytes": file_bytes, "disk_bytes": disk_bytes, "files": paths });
        return write_json(out, record);
    }
    let files = if paths.len() > 1 { format!("{} files", paths.len()) } else { "file".to_owned() };
    print_line("format", input.format(), 13, out)?;
    for (what, bytes) in [
        ("reachable", reachable_bytes),
        ("unreachable", unreachable_bytes),
        (files.as_str(), file_bytes),
        ("disk", disk_bytes),
    ] {
        print_line(what, &bytes_cell(bytes), 13, out)?;
    }
    Ok(())
}
