//! Copies a store, or some of its tensors, to a new path.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use indicatif::HumanBytes;
use serde_json::json;
use stridemap::{Snapshot, Store};

use super::Export;
use crate::error::{Error, Result};
use crate::in_place::note_files_of_copy;
use crate::input::stored_bytes;
use crate::names::one_line;
use crate::remote::shown;
use crate::ui::{advance, counted, message, short_record, write_json};

/// Copies the store, or some of its tensors, to a new path.
pub(super) fn copy(
    args: &Export<'_>,
    names: &BTreeSet<String>,
    (store, snapshot, path): (&Store, &Snapshot, &Path),
    out: &mut impl Write,
) -> Result<()> {
    if args.out.symlink_metadata().is_ok() {
        let why = "the path exists, and a store is never replaced; choose a different path";
        return Err(Error::at("export", args.out, why));
    }
    let record = || {
        let mut tensors = Vec::new();
        for info in snapshot.iter_tensors("")? {
            let info = info?;
            if names.is_empty() || names.contains(&info.name) {
                tensors.push(short_record(&info.name, &info.header));
            }
        }
        let nbytes =
            tensors.iter().filter_map(|tensor| tensor["nbytes"].as_u64()).fold(0, u64::saturating_add);
        Ok::<_, Error>(
            json!({ "is_dry_run": args.options.existing.is_dry_run(), "files": [args.out.to_string_lossy()],
            "tensor_count": tensors.len(), "nbytes": nbytes, "tensors": tensors }),
        )
    };
    if args.options.existing.is_dry_run() {
        let count = if names.is_empty() { snapshot.names()?.len() } else { names.len() };
        names.iter().try_for_each(|name| snapshot.load(name).map(drop))?;
        if args.options.json {
            return write_json(out, record()?);
        }
        let count = counted(count as u64, "tensor");
        let copy = one_line(&args.out.to_string_lossy());
        let tags = if args.options.tags { with_tags(store.tags()?.len() as u64) } else { String::new() };
        return Ok(writeln!(out, "would write {copy}, a copy of the store: {count}{tags}")?);
    }
    let chosen: Vec<&str> = names.iter().map(String::as_str).collect();
    // The size of a copy of some tensors is not known in advance.
    let size_bytes = if names.is_empty() { stored_bytes(snapshot, false)? } else { 0 };
    let chosen = (!names.is_empty()).then_some(&*chosen);
    let (copied, tags) = if args.options.tags {
        let all = store.tags()?;
        let all: Vec<&str> = all.iter().map(|tag| &*tag.name).collect();
        let size_bytes = size_bytes.saturating_add(store.freed_without(&all)?);
        let copied = store.copy_with_tags(args.out, advance("export", size_bytes))?;
        (copied, with_tags(copied.tag_count))
    } else {
        (snapshot.copy_to(args.out, chosen, advance("export", size_bytes))?, String::new())
    };
    let shared = match copied.shared_bytes {
        0 => String::new(),
        bytes => format!("; {} share their blocks with {}", HumanBytes(bytes), shown(path)),
    };
    let size = HumanBytes(copied.copied_bytes + copied.shared_bytes);
    let tensors = counted(copied.tensor_count, "tensor");
    message(&format!("exported {tensors}{tags}, {size}, to {}{shared}", args.out.display()));
    note_files_of_copy(args.out, snapshot, |name| names.is_empty() || names.contains(name))?;
    if args.options.json { write_json(out, record()?) } else { Ok(()) }
}

fn with_tags(count: u64) -> String {
    format!(" and {}", counted(count, "tag"))
}
