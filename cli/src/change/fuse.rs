//! `import --fuse`: tensors that are copied one after another into one storage.

use std::collections::{BTreeMap, BTreeSet};

use stridemap::{Header, Result as LibraryResult, TensorInfo, Transaction};
use stridemap_interop::ForeignFile;
use stridemap_interop::gguf::TYPE_KEY;

use crate::error::{Error, Result};
use crate::names::{Numbered, quoted};
use crate::plan::header;
use crate::ui::counted;

/// The tensors that are fused.
#[derive(Default)]
pub(super) struct Fused<'a> {
    patterns: Vec<FusedPattern<'a>>,
    /// The names of the tensors in their files.
    names: BTreeSet<String>,
}

struct FusedPattern<'a> {
    text: String,
    /// Tensors that are copied one after another.
    runs: Vec<Vec<Member<'a>>>,
}

/// A tensor of a file, and its name in the store.
struct Member<'a> {
    file: &'a ForeignFile,
    info: TensorInfo,
    name: String,
}

impl<'a> Fused<'a> {
    /// Returns the tensors of the files whose names in the store match the patterns. Each pattern must match some, and those
    /// that differ only in their last number must have one dtype and one size.
    pub(super) fn of(
        patterns: &[String],
        files: impl Iterator<Item = &'a ForeignFile>,
        name_of: impl Fn(&TensorInfo) -> String,
    ) -> Result<Self> {
        let mut fused = Fused::default();
        if patterns.is_empty() {
            return Ok(fused);
        }
        let tensors = files.flat_map(|file| file.tensors().map(move |info| (file, info)));
        let mut rest: BTreeMap<String, (&ForeignFile, TensorInfo)> =
            tensors.map(|(file, info)| (name_of(&info), (file, info))).collect();
        for text in patterns {
            let told = |e: Error| Error::Refused(format!("import --fuse: {e}"));
            let pattern = Numbered::parse(text).map_err(told)?;
            let found = pattern.runs(rest.keys().cloned()).map_err(told)?;
            if found.is_empty() {
                let why = format!(
                    "import --fuse: no whole name of a tensor matches {text:?}, or another --fuse has it"
                );
                return Err(Error::NoMatch(why));
            }
            let mut runs = Vec::new();
            for run in found {
                let member = |name| {
                    let (file, info) = rest.remove(&name)?;
                    Some(Member { file, info, name })
                };
                let run: Vec<Member<'a>> = run.names.into_iter().filter_map(member).collect();
                check_alike(&run)?;
                fused.names.extend(run.iter().map(|member| member.info.name.clone()));
                runs.push(run);
            }
            fused.patterns.push(FusedPattern { text: text.clone(), runs });
        }
        Ok(fused)
    }

    /// Returns whether the tensor with this name in its file is fused.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Says for each pattern how many tensors are fused.
    pub(super) fn described(&self) -> impl Iterator<Item = String> {
        self.patterns.iter().map(|FusedPattern { text, runs }| {
            let tensors = counted(runs.iter().map(|run| run.len() as u64).sum(), "tensor");
            format!("{text}: {tensors} in {} without gaps", counted(runs.len() as u64, "run"))
        })
    }

    /// Copies the tensors. `progress` is called with the bytes read since the last call.
    pub(super) fn import_into(
        &self,
        txn: &mut Transaction<'_>,
        mut progress: impl FnMut(u64),
    ) -> LibraryResult<()> {
        let runs = || self.patterns.iter().flat_map(|pattern| &pattern.runs);
        // Fail early, before gigabytes are written.
        runs().flatten().try_for_each(|member| txn.check_name(&member.name))?;
        for run in runs() {
            let nbytes = run.iter().map(|member| member.info.header.nbytes() as u64);
            let size_bytes = nbytes.fold(0, u64::saturating_add);
            let storage = txn.stage(Some(size_bytes), |sink| {
                run.iter().try_for_each(|member| {
                    member.file.write_elements(&member.info.name, &mut |bytes| {
                        sink(bytes)?;
                        progress(bytes.len() as u64);
                        Ok(())
                    })
                })
            })?;
            let mut offset = 0;
            for Member { file, info, name } in run {
                let refused = |e| stridemap::Error::refused(format_args!("import {name:?}"), e);
                let names = info.header.dim_names().unwrap_or_default().to_vec();
                let header = Header::contiguous(info.header.dtype(), info.header.size());
                let header = header.and_then(|header| header.with_dim_names(names)).map_err(refused)?;
                txn.save_header(name, &header.with_storage_offset(offset), storage)?;
                file.copy_attributes_of(&info.name, txn, name)?;
                offset += info.header.numel();
            }
        }
        Ok(())
    }
}

/// Returns the type of a tensor that no dtype has.
fn gguf_type(member: &Member<'_>) -> Option<String> {
    member.file.attributes_of(&member.info.name).remove(TYPE_KEY)
}

fn check_alike(run: &[Member<'_>]) -> Result<()> {
    let Some((first, others)) = run.split_first() else { return Ok(()) };
    let is_like = |other: &&Member<'_>| {
        let [a, b] = [first, other].map(|member| &member.info.header);
        (a.dtype(), a.size(), gguf_type(first)) == (b.dtype(), b.size(), gguf_type(other))
    };
    let Some(other) = others.iter().find(|other| !is_like(other)) else { return Ok(()) };
    let [a, b] = [first, other].map(|member| {
        let blocks = gguf_type(member).map(|name| format!(", blocks of {name}")).unwrap_or_default();
        format!("{} is {}{blocks}", quoted(&member.name), header(&member.info))
    });
    Err(Error::Refused(format!(
        "import --fuse: {a}, but {b}; tensors that are fused have one dtype and one size"
    )))
}
