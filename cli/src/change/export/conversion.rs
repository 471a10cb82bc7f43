//! Converts tensors to another dtype on their way to a file.

use std::collections::BTreeMap;
use std::env;

use stridemap::{Durability, StoreOptions, Tensor};
use tempfile::TempDir;

use super::Export;
use super::sources::Sources;
use crate::change::cast::{Cast, kind, note_others};
use crate::error::{Error, Result};
use crate::names::{Pattern, pattern, quoted};
use crate::pieces::steady;
use crate::ui::advance;

/// The tensors to convert, by their positions among all that are exported.
pub(super) struct Conversion(Vec<(usize, Tensor)>);

impl Conversion {
    /// Finds the tensors that `--to` converts, as `convert` does: those of the same kind of numbers, and those that are given
    /// by name. Each is replaced by a tensor of the new dtype and the same size that takes no memory, for everything that is
    /// checked before elements are read. `types` are the types of tensors that no dtype has.
    pub(super) fn plan(
        args: &Export<'_>,
        tensors: &mut [(String, Tensor)],
        types: &BTreeMap<String, String>,
        sources: &Sources,
    ) -> Result<Self> {
        let mut originals = Vec::new();
        let Some(to) = args.options.to else { return Ok(Conversion(originals)) };
        let patterns: Vec<Pattern> =
            args.names.iter().map(|text| pattern(text, sources)).collect::<Result<_>>()?;
        for (at, (name, tensor)) in tensors.iter_mut().enumerate() {
            let is_named = patterns.iter().any(|pattern| pattern.is_name() && pattern.text == *name);
            if let Some(of) = types.get(name) {
                if is_named {
                    let name = quoted(name);
                    return Err(Error::Refused(format!(
                        "export {name}: its elements are the bytes of {of}, and no conversion takes them apart"
                    )));
                }
                continue;
            }
            let is_converted = tensor.dtype() != to && (is_named || kind(tensor.dtype()) == kind(to));
            if is_converted {
                Tensor::zeros(tensor.dtype(), &[0])?.to_dtype(to).map(drop)?; // refuses a conversion that does not exist
                let size: Vec<i64> = tensor.size().iter().map(|&n| n as i64).collect();
                let planned = Tensor::zeros(to, &[])?.expand(size)?;
                originals.push((at, std::mem::replace(tensor, planned)));
            }
        }
        if !args.options.existing.is_dry_run() {
            let others = tensors.iter().filter(|(_, tensor)| tensor.dtype() != to);
            note_others(to, others.map(|(name, tensor)| (name.as_str(), tensor.dtype())));
        }
        Ok(Conversion(originals))
    }

    /// Converts the tensors, through a temporary store. Returns its directory, which must live as long as they do.
    pub(super) fn apply(self, tensors: &mut [(String, Tensor)]) -> Result<Option<TempDir>> {
        let Conversion(originals) = self;
        if originals.is_empty() {
            return Ok(None);
        }
        let dir = tempfile::Builder::new().prefix("stridemap-convert-").tempdir().map_err(|e| {
            let folder = env::temp_dir();
            let why = "make a directory for the converted tensors; TMPDIR names another place";
            Error::Refused(format!("export: {}: {why}: {e}", folder.display()))
        })?;
        let store = StoreOptions::new().durability(Durability::Process).create(dir.path().join("x.smap"))?;
        let progress =
            advance("convert", originals.iter().map(|(_, original)| original.nbytes() as u64).sum());
        let name = |at: usize| format!("{at}");
        let mut guards = Vec::new();
        store.write(|txn| -> Result<()> {
            for (at, original) in &originals {
                let Some((_, planned)) = tensors.get(*at) else { continue };
                let (tensor, guard) = steady(original)?;
                guards.extend(guard);
                txn.save(&name(*at), &Cast { tensor, to: planned.dtype(), progress: &progress })?;
            }
            Ok(())
        })?;
        drop(guards);
        for (at, _) in &originals {
            if let Some((_, planned)) = tensors.get_mut(*at) {
                *planned = store.load(&name(*at))?;
            }
        }
        Ok(Some(dir))
    }
}
