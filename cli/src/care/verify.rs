//! `verify`: reports damage, and the tensors that it affects.

use std::fs;
use std::io::Write;

use serde_json::{Value, json};
use stridemap::maintenance::{Finding, SpareFile, Verification};
use stridemap::{ErrorKind, Store, StoreOptions};

use super::verify_file;
use crate::args::{External, Source};
use crate::at::split;
use crate::error::{Error, Result};
use crate::input::{explain, open_at, stored_bytes};
use crate::names::{names, one_line};
use crate::remote::{self, check_local, is_url};
use crate::ui::{advance, counted, examples, message, write_json};

/// Verify a store or file, or some tensors, and report damage
///
/// The exit code is 1 if damage is found, or a tensor whose change was interrupted.
///
/// Each line shows the file, the offset, the damage, the broken rule of the format, and the affected tensors. If
/// tensors are named, only the 1 MiB chunks that contain their elements are read. Damage to what only
/// tagged generations need is found, too, and the line names their tags. Files that are no longer needed are listed, but
/// are not damage. A file that was imported in place is not read; verify checks that it has not
/// changed since then. Mutable and live storages have digests only at a URL, so elsewhere their elements are not checked. A
/// mutable tensor is listed if a change of it was interrupted: some elements may be changed, and others not.
///
/// Of a file in another format, the header is checked, and all elements are read. Only .npz and .pt files have checksums; in
/// others, changed elements are not found.
#[derive(clap::Args)]
#[command(after_help = examples(&["verify model.smap && echo whole", "verify model.smap --json | jq .findings[].affects", "verify model.npz"]))]
pub(crate) struct VerifyArgs {
    /// The tensors to verify, by name, by glob ('encoder.*') or by prefix ('encoder.'); all if none is named
    #[arg(index = 2, value_name = "NAME")]
    pub(super) names: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) source: Source,
    #[command(flatten)]
    external: External,
}

/// The maximum number of unneeded files that are listed.
const MAX_SHOWN_ORPHANS: usize = 10;

/// Runs the command. Returns whether the store is whole.
pub(crate) fn run(args: &VerifyArgs, out: &mut impl Write) -> Result<bool> {
    let path = &args.source.path;
    if !is_url(path) && fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return verify_file::run(args, out);
    }
    let verified = verify_store(args)?;
    let is_whole = verified.is_whole();
    if args.json {
        write_json(out, record(&verified))?;
        return Ok(is_whole);
    }
    for finding in &verified.findings {
        writeln!(out, "{}", one_line(&finding.to_string()))?;
    }
    for name in &verified.interrupted {
        let line = format!(
            "{name:?}: a change of the elements was interrupted; set them right under \
             allow_interrupted().lock() in Python, or allow_interrupted().lock_exclusive() in Rust"
        );
        writeln!(out, "{}", one_line(&line))?;
    }
    if is_whole {
        writeln!(out, "ok")?;
    }
    out.flush()?;
    for orphan in verified.orphans.iter().take(MAX_SHOWN_ORPHANS) {
        message(&format!("note: {orphan}"));
    }
    if let Some(more) = verified.orphans.len().checked_sub(MAX_SHOWN_ORPHANS).filter(|&more| more > 0) {
        message(&format!("note: and {} that are no longer needed", counted(more as u64, "more file")));
    }
    if let Some(first) = verified.unchecked_files.first() {
        message(&format!(
            "note: {} not checked, such as {}; --external selects the files that may be opened",
            counted(verified.unchecked_files.len() as u64, "external file"),
            first.display()
        ));
    }
    Ok(is_whole)
}

/// Verifies a store. A store that is too damaged to be opened is verified by its path.
fn verify_store(args: &VerifyArgs) -> Result<Verification> {
    let mut options = args.external.options();
    if is_url(&args.source.path) {
        return verify_remote(args, &options);
    }
    check_local(&args.source.path)?;
    let (mut path, mut _tagged) = (args.source.path.as_path(), None);
    if let Some((store, _)) = split(path) {
        match open_at(&options, path) {
            Ok((_, snapshot)) => {
                (options, path) = (options.at(snapshot.generation()), store);
                _tagged = Some(snapshot); // It stays on disk until it has been verified.
            }
            // The damage is found by verifying the whole store.
            Err(Error::Library(e)) if e.kind() == ErrorKind::Corrupt => {
                return options.verify(store, advance("verify", 0)).map_err(|e| explain(store, e));
            }
            Err(e) => return Err(e),
        }
    }
    let verified = match options.open(path) {
        Ok(store) => verify_open(args, &store),
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(options.verify(path, advance("verify", 0))),
        Err(e) => Ok(Err(e)),
    };
    verified?.map_err(|e| explain(path, e))
}

/// Verifies the store at a URL. If HEAD, the remote manifest or the root of a table is damaged, that is all that is known.
fn verify_remote(args: &VerifyArgs, options: &StoreOptions) -> Result<Verification> {
    let (store, snapshot) = match open_at(options, &args.source.path) {
        Err(Error::Library(e)) if e.rule().is_some() => return Ok(Verification::of_unopened(e)?),
        opened => opened?,
    };
    let url = match split(&args.source.path) {
        Some((url, _)) if store.generation() != snapshot.generation() => url,
        _ => return Ok(verify_open(args, &store)??),
    };
    let tagged = remote::open_newest(&options.clone().at(snapshot.generation()), url)?;
    Ok(verify_open(args, &tagged)??)
}

/// Verifies an open store, or the named tensors. The outer error is about the names.
fn verify_open(args: &VerifyArgs, store: &Store) -> Result<stridemap::Result<Verification>> {
    if args.names.is_empty() {
        // What cannot be read is reported.
        let size_bytes = stored_bytes(&store.snapshot(), false).unwrap_or_default();
        return Ok(store.verify(advance("verify", size_bytes)));
    }
    let names = names(&args.names, &store.snapshot())?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ok(store.verify_tensors(&names, advance("verify", 0)))
}

fn record(verified: &Verification) -> Value {
    let finding = |finding: &Finding| {
        let affects: Value = match finding.affects_all {
            true => "all".into(),
            false => finding.names.iter().map(|name| &**name).collect(),
        };
        json!({
            "file": finding.path.display().to_string(),
            "offset": finding.offset_bytes,
            "rule": finding.rule.to_string(),
            "rule_text": finding.rule.text(),
            "detail": finding.detail,
            "affects": affects,
            "affects_more": finding.more_names,
            "tags": finding.tags,
        })
    };
    let orphan = |orphan: &SpareFile| {
        json!({
            "file": orphan.path.display().to_string(),
            "bytes": orphan.spare_bytes,
            "reason": orphan.reason.name(),
            "detail": orphan.reason.to_string(),
        })
    };
    let unchecked = verified.unchecked_files.iter().map(|path| path.display().to_string());
    json!({
        "findings": verified.findings.iter().map(finding).collect::<Vec<_>>(),
        "interrupted": verified.interrupted,
        "orphans": verified.orphans.iter().map(orphan).collect::<Vec<_>>(),
        "unchecked": unchecked.collect::<Vec<_>>(),
        "bytes_read": verified.read_bytes,
    })
}
