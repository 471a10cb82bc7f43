//! Converts tensors to another dtype on their way to a file.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;

use stridemap::import::ExternalFile;
use stridemap::{DType, Header, Source as _, Tensor};

use super::Export;
use super::sources::Sources;
use crate::change::cast::{Cast, is_converted, note_others};
use crate::error::{Error, Result};
use crate::names::{Pattern, pattern, quoted};
use crate::pieces::steady;
use crate::ui::advance;

/// What `--to` converts.
#[derive(Default)]
pub(super) struct Conversion {
    /// The tensors to convert, by their positions among all that are exported.
    originals: Vec<(usize, Tensor)>,
    /// The dtype, and those of another dtype that stay as they are.
    others: Option<(DType, Vec<(String, DType)>)>,
}

impl Conversion {
    /// Finds the tensors that are converted. Each is replaced by a tensor of the new dtype and the same size that takes no
    /// memory, for everything that is checked before elements are read. `types` are the types of tensors that no dtype has.
    pub(super) fn plan(
        args: &Export<'_>,
        tensors: &mut [(String, Tensor)],
        types: &BTreeMap<String, String>,
        sources: &Sources,
    ) -> Result<Self> {
        let Some(to) = args.options.to else { return Ok(Conversion::default()) };
        let patterns: Vec<Pattern> =
            args.names.iter().map(|text| pattern(text, sources)).collect::<Result<_>>()?;
        let (mut originals, mut others) = (Vec::new(), Vec::new());
        for (at, (name, tensor)) in tensors.iter_mut().enumerate() {
            let is_named = patterns.iter().any(|pattern| pattern.is_name() && pattern.text == *name);
            let blocks = types.get(name).map(String::as_str);
            if is_converted("export", (name, tensor.dtype()), to, is_named, blocks)? {
                let size: Vec<i64> = tensor.size().iter().map(|&n| n as i64).collect();
                let planned = Tensor::zeros(to, &[])?.expand(size)?;
                originals.push((at, std::mem::replace(tensor, planned)));
            } else if blocks.is_none() && tensor.dtype() != to {
                others.push((name.clone(), tensor.dtype()));
            }
        }
        Ok(Conversion { originals, others: Some((to, others)) })
    }

    /// Converts the tensors, into an unnamed file: together they may not fit in memory.
    pub(super) fn apply(self, tensors: &mut [(String, Tensor)]) -> Result<()> {
        let Some((to, others)) = &self.others else { return Ok(()) };
        note_others(*to, others.iter().map(|(name, dtype)| (name.as_str(), *dtype)));
        if self.originals.is_empty() {
            return Ok(());
        }
        let dir = env::temp_dir();
        let failed = |name: &str, e: io::Error| {
            let (name, dir) = (quoted(name), dir.display());
            Error::Refused(format!(
                "export {name}: convert it to {to} in {dir}: {e}; TMPDIR names another place for temporary files"
            ))
        };
        let size_bytes =
            self.originals.iter().map(|(_, original)| original.nbytes() as u64).fold(0, u64::saturating_add);
        let progress = advance("convert", size_bytes);
        let (mut file, mut end) = (None::<File>, 0u64);
        let mut ranges: Vec<(usize, Range<u64>)> = Vec::new();
        for (at, original) in &self.originals {
            let Some((name, _)) = tensors.get(*at) else { continue };
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(tempfile::tempfile().map_err(|e| failed(name, e))?),
            };
            // Of a mutable tensor, all elements are of one moment. Nobody waits for the others.
            let (tensor, _guard) = steady(original)?;
            let (start, mut unwritten) = (end, None);
            let cast = Cast { tensor, to: *to, progress: &progress };
            let written = cast.write_to(&mut |bytes| {
                end += bytes.len() as u64;
                file.write_all(bytes).map_err(|e| {
                    unwritten = Some(e);
                    stridemap::Error::new(stridemap::ErrorKind::Io, "the temporary file could not be written")
                })
            });
            match (unwritten, written) {
                (Some(e), _) => return Err(failed(name, e)),
                (None, written) => written.map_err(|e| e.context(format!("export {}", quoted(name))))?,
            }
            ranges.push((*at, start..end));
        }
        let Some(file) = file else { return Ok(()) };
        let file = Arc::new(ExternalFile::from_file(file, dir.join("unnamed"))?);
        for (at, range) in ranges {
            if let Some((_, planned)) = tensors.get_mut(at) {
                let header =
                    Header::contiguous(*to, planned.size()).map_err(|e| Error::Refused(e.to_string()))?;
                *planned = Tensor::from_file(&file, range, header)?;
            }
        }
        Ok(())
    }
}
