//! Writes the files of an export.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use stridemap::Tensor;
use stridemap_interop::npz::Packing;
use stridemap_interop::{gguf, npy, npz, safetensors};

use super::Export;
use super::format::{Format, Order};
use crate::error::Result;

/// Returns the options for a safetensors file.
fn model<'a>(args: &Export<'_>, attributes: &'a BTreeMap<String, String>) -> safetensors::Export<'a> {
    let export = safetensors::Export::new().metadata(attributes).on_existing(args.options.existing.policy());
    match args.options.max_shard_size {
        Some(max_shard_bytes) => export.max_shard_bytes(max_shard_bytes),
        None => export,
    }
}

/// Returns the paths of the files to write. The last one is that by which the tensors are opened: the index, if they
/// are split into shards.
pub(super) fn files(args: &Export<'_>, format: Format, tensors: &[(String, Tensor)]) -> Result<Vec<PathBuf>> {
    match format {
        _ if args.is_piped() => Ok(Vec::new()),
        Format::Safetensors => Ok(model(args, &BTreeMap::new()).paths(args.out, tensors)?),
        _ => Ok(vec![args.out.to_path_buf()]),
    }
}

/// What is written beside the tensors, if the format has it.
#[derive(Clone, Copy)]
pub(super) struct Texts<'a> {
    pub(super) attributes: &'a BTreeMap<String, String>,
    /// The types of tensors that no dtype has, by name in the file.
    pub(super) types: &'a BTreeMap<String, String>,
}

/// Returns the options for a GGUF file.
fn gguf_model<'a>(args: &Export<'_>, texts: Texts<'a>) -> gguf::Export<'a> {
    let export = gguf::Export::new().metadata(texts.attributes).types(texts.types);
    export.on_existing(args.options.existing.policy())
}

/// Refuses what a GGUF file cannot hold, before anything is read or written.
pub(super) fn check_gguf(
    args: &Export<'_>,
    tensors: &[(String, Tensor)],
    texts: Texts<'_>,
) -> stridemap::Result<()> {
    gguf_model(args, texts).check(args.out, tensors)
}

/// Writes the tensors. Returns the number of files with elements, and the names that had to be changed.
pub(super) fn write(
    args: &Export<'_>,
    format: Format,
    tensors: &[(String, Tensor)],
    texts: Texts<'_>,
    out: &mut impl Write,
    progress: impl FnMut(u64),
) -> stridemap::Result<(usize, Vec<(String, String)>)> {
    let (path, existing) = (args.out, args.options.existing.policy());
    let order = match args.options.order {
        Order::C => stridemap_interop::Order::C,
        Order::F => stridemap_interop::Order::F,
    };
    match (format, tensors) {
        (Format::Safetensors, _) => {
            let export = model(args, texts.attributes);
            if args.is_piped() {
                export.write_to(out, tensors, progress)?;
            } else {
                // Several files are shards and an index.
                return Ok((export.write(path, tensors, progress)?.len().max(2) - 1, Vec::new()));
            }
        }
        (Format::Gguf, _) => {
            let export = gguf_model(args, texts);
            if args.is_piped() {
                export.write_to(out, tensors, progress)?;
            } else {
                export.write(path, tensors, progress)?;
            }
        }
        (Format::Npy, [(_, tensor)]) => {
            let export = npy::Export::new().order(order).on_existing(existing);
            if args.is_piped() {
                export.write_to(out, tensor, progress)?;
            } else {
                export.write(path, tensor, progress)?;
            }
        }
        (Format::Npz, _) => {
            let packing = if args.options.compress { Packing::Deflated } else { Packing::Stored };
            let export = npz::Export::new().order(order).packing(packing);
            return Ok((1, export.on_existing(existing).write(path, tensors, progress)?));
        }
        (Format::Npy | Format::Store, _) => unreachable!("refused by check_contents, or written by copy"),
    }
    Ok((1, Vec::new()))
}
