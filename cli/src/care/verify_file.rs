//! What can be verified of a file in another format: its header, the checksums of a zip file, and that it can be read.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use stridemap::{ErrorKind, StoreOptions};

use super::verify::VerifyArgs;
use crate::error::{Error, Result, is_other_format};
use crate::input::{Input, check_found};
use crate::names::{names, one_line, quoted};
use crate::ui::{advance, message, write_json};

/// The maximum number of names on the line of a finding.
const MAX_SHOWN: usize = 3;

/// Damage to a file, and the tensors on the damaged storage.
struct Finding {
    why: String,
    names: Vec<String>,
    /// Whether the header is damaged, so that no tensor can be read.
    affects_all: bool,
}

/// What was found.
#[derive(Default)]
struct Verified {
    findings: Vec<Finding>,
    read_bytes: u64,
    /// Whether all storages have checksums.
    has_checksums: bool,
    /// Why a storage could not be read, which says nothing about damage.
    unread: Option<stridemap::Error>,
}

/// Runs the command. Returns whether no damage was found. It is an error if something could not be read.
pub(super) fn run(args: &VerifyArgs, out: &mut impl Write) -> Result<bool> {
    let path = &args.source.path;
    check_found(path, "file")?;
    let verified = match args.source.open(&StoreOptions::new()) {
        Ok(input) => verify(args, &input)?,
        Err(Error::Library(e)) if e.kind() == ErrorKind::BadFile && !is_other_format(&e) => {
            let finding = Finding { why: e.to_string(), names: Vec::new(), affects_all: true };
            Verified { findings: vec![finding], has_checksums: true, ..Verified::default() }
        }
        Err(e) => return Err(e),
    };
    let is_whole = verified.findings.is_empty();
    if args.json {
        write_json(out, record(&verified, path))?;
        return verified.unread.map_or(Ok(is_whole), |e| Err(e.into()));
    }
    for finding in &verified.findings {
        writeln!(out, "{}", one_line(&finding.line()))?;
    }
    if let Some(e) = verified.unread {
        out.flush()?;
        return Err(e.into());
    }
    if is_whole {
        writeln!(out, "ok")?;
    }
    out.flush()?;
    if !verified.has_checksums {
        message("note: the file has no checksums, so changed elements would not be found; a store has them");
    }
    Ok(is_whole)
}

fn verify(args: &VerifyArgs, input: &Input) -> Result<Verified> {
    let Input::File(file) = input else { return Ok(Verified::default()) };
    let names = names(&args.names, input)?;
    if let Some(missing) = names.iter().find(|name| !file.contains(name)) {
        file.load(missing).map(drop)?; // says which names there are
    }
    let mut by_storage: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for info in file.tensors() {
        by_storage.entry(info.storage_id).or_default().push(info.name);
    }
    let is_selected =
        |id: &u64| by_storage.get(id).is_some_and(|on| on.iter().any(|name| names.contains(name)));
    let storages: BTreeMap<u64, u64> =
        file.storages().map(|storage| (storage.id, storage.size_bytes)).collect();
    let selected = storages.into_iter().filter(|(id, _)| names.is_empty() || is_selected(id));
    let selected: Vec<(u64, u64)> = selected.collect();
    let total_bytes = selected.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    let advance = advance("verify", total_bytes);
    let mut verified = Verified { has_checksums: true, ..Verified::default() };
    for (id, size_bytes) in selected {
        match file.verify_storage(id, &advance) {
            Ok(has_checksum) => verified.has_checksums &= has_checksum || size_bytes == 0,
            // Other storages may be damaged.
            Err(e) if e.kind() != ErrorKind::BadFile => verified.unread = Some(verified.unread.unwrap_or(e)),
            Err(e) => {
                let names = by_storage.remove(&id).unwrap_or_default();
                verified.findings.push(Finding { why: e.to_string(), names, affects_all: false });
            }
        }
        verified.read_bytes = verified.read_bytes.saturating_add(size_bytes);
    }
    Ok(verified)
}

impl Finding {
    fn line(&self) -> String {
        let Finding { why, names, affects_all } = self;
        let shown: Vec<_> = names.iter().take(MAX_SHOWN).map(|name| quoted(name)).collect();
        let more = names.len().saturating_sub(MAX_SHOWN);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        match affects_all {
            true => format!("{why}: affects all tensors"),
            false => format!("{why}: affects {}{more}", shown.join(", ")),
        }
    }
}

/// Returns what was found as JSON, with the keys of that of a store.
fn record(verified: &Verified, path: &Path) -> Value {
    let finding = |finding: &Finding| {
        let affects: Value = match finding.affects_all {
            true => "all".into(),
            false => finding.names.iter().map(|name| &**name).collect(),
        };
        json!({ "file": path.display().to_string(), "offset": null, "rule": null, "rule_text": null,
            "detail": finding.why, "affects": affects, "affects_more": 0, "tags": [] })
    };
    json!({
        "findings": verified.findings.iter().map(finding).collect::<Vec<_>>(),
        "interrupted": [],
        "orphans": [],
        "unchecked": [],
        "bytes_read": verified.read_bytes,
    })
}
