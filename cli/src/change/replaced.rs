//! The files that an export would replace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stridemap::{Snapshot, StorageKind};

use super::export::ExportArgs;
use crate::error::{Error, Result};
use crate::output_file::{EXISTS, parent_dir};

/// Refuses to replace a file unless `--force` is given. Always refuses a path that is not a file. Returns whether the
/// file exists.
pub(super) fn check_existing(path: &Path, args: &ExportArgs) -> Result<bool> {
    let refused = |why: &str| Err(Error::Refused(format!("export {}: {why}", path.display())));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            refused("the path exists and is not a regular file")
        }
        Ok(_) if !args.existing.force => refused(EXISTS),
        found => Ok(found.is_ok()),
    }
}

/// Returns the path by which an export of these tensors is opened: the index if they are split into shards, otherwise
/// the output file.
pub(super) fn main_file(args: &ExportArgs, tensor_count: usize, size_bytes: u64) -> PathBuf {
    match args.max_shard_size {
        Some(most) if size_bytes > most && tensor_count > 1 => index_path(args),
        _ => args.out.clone(),
    }
}

/// Returns the path of the index that a model in shards has.
pub(super) fn index_path(args: &ExportArgs) -> PathBuf {
    let mut path = args.out.clone();
    path.as_mut_os_string().push(".index.json");
    path
}

/// Refuses to replace a file that was imported in place if the export leaves out some of its tensors, because the
/// store has no other copy of them.
pub(super) fn check_files_in_place(
    args: &ExportArgs,
    names: &BTreeSet<String>,
    snapshot: &Snapshot,
) -> Result<()> {
    let is_all = names.is_empty() && args.prefix.is_empty();
    if !args.existing.force || is_all {
        return Ok(());
    }
    let is_exported = |name: &String| match names.is_empty() {
        true => name.starts_with(&args.prefix),
        false => names.contains(name),
    };
    let mut replaced = BTreeMap::new();
    for storage in snapshot.storages() {
        let storage = storage?;
        if storage.kind == StorageKind::External && would_replace(args, &storage.file) {
            replaced.insert(storage.id, storage.file);
        }
    }
    if replaced.is_empty() {
        return Ok(());
    }
    for tensor in snapshot.tensors("")? {
        let tensor = tensor?;
        let Some(file) = replaced.get(&tensor.storage_id) else { continue };
        if !is_exported(&tensor.name) {
            return Err(Error::Refused(format!(
                "export {}: this would replace {}, which holds tensor {:?} of {}, imported in place; that tensor is \
                 not being exported: write to another path, or first copy it into the store with compact \
                 --materialize",
                args.out.display(),
                file.display(),
                tensor.name,
                args.store.display()
            )));
        }
    }
    Ok(())
}

/// Returns whether the export would replace this file, or could write a shard with the same name.
fn would_replace(args: &ExportArgs, file: &Path) -> bool {
    let place = |path: &Path| -> Option<PathBuf> {
        Some(fs::canonicalize(parent_dir(path)).ok()?.join(path.file_name()?))
    };
    let (Some(out), Some(file)) = (place(&args.out), place(file)) else { return false };
    // The export replaces a symbolic link itself, not its target. The inodes are compared too, because the store may
    // have recorded a different hard link of the file.
    let id = |path: &Path| fs::symlink_metadata(path).ok().map(|it| (it.dev(), it.ino()));
    if out == file || id(&out).is_some_and(|it| id(&file) == Some(it)) {
        return true;
    }
    let stem = |path: &Path| path.file_stem().and_then(OsStr::to_str).map(str::to_owned);
    let is_shard = || {
        let (model, shard) = (stem(&out)?, stem(&file)?);
        let number = shard.strip_prefix(&model)?.strip_prefix('-')?;
        number.chars().all(|c| c.is_ascii_digit() || "-of".contains(c)).then_some(())
    };
    args.max_shard_size.is_some() && out.parent() == file.parent() && is_shard().is_some()
}
