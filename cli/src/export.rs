//! `export`: tensors into a file of another format.

use std::ffi::OsStr;
use std::path::Path;

use indicatif::HumanBytes;
use stridemap::Tensor;
use stridemap::interop::npz::Packing;
use stridemap::interop::{npy, npz, safetensors};

use crate::args::{ExportArgs, Order};
use crate::error::{Error, Result};
use crate::output::{counted, message, progress};
use crate::source::open_store;
use crate::twice;

#[derive(Clone, Copy)]
enum Format {
    Safetensors,
    Npy,
    Npz,
}

impl Format {
    fn of(out: &Path) -> Result<Self> {
        match out.extension().and_then(OsStr::to_str) {
            Some("safetensors") => Ok(Format::Safetensors),
            Some("npy") => Ok(Format::Npy),
            Some("npz") => Ok(Format::Npz),
            _ => Err(Error::Refused(format!(
                "export {}: the ending says the kind of file, and is to be .safetensors, .npy or .npz",
                out.display()
            ))),
        }
    }
}

pub(crate) fn run(args: &ExportArgs) -> Result<()> {
    let format = Format::of(&args.out)?;
    check_flags(args, format)?;
    let snapshot = open_store(&args.external.options(), &args.store)?.snapshot();
    let load = |name: &String| Ok((name.clone(), snapshot.load(name)?));
    let tensors: stridemap::Result<Vec<(String, Tensor)>> = if args.names.is_empty() {
        snapshot.load_all("")?.collect()
    } else {
        args.names.iter().map(load).collect()
    };
    let tensors = tensors?;

    let size_bytes = tensors.iter().map(|(_, tensor)| tensor.nbytes() as u64).fold(0, u64::saturating_add);
    let bar = progress("export", size_bytes);
    let mut part_count = 1;
    let (out, existing) = (&args.out, args.existing.policy());
    match (format, tensors.as_slice()) {
        (Format::Safetensors, _) => {
            let options =
                safetensors::WriteOptions::new().metadata(snapshot.attributes()).on_existing(existing);
            let options = args.max_shard_size.map_or(options.clone(), |most| options.max_shard_bytes(most));
            part_count = options.write(out, &tensors, &mut |bytes| bar.inc(bytes))?.len().max(2) - 1;
        }
        (Format::Npy, [(_, tensor)]) => {
            npy::write_in(out, tensor, args.order.into(), existing, &mut |bytes| bar.inc(bytes))?;
        }
        (Format::Npz, _) => {
            let (order, packing) = (args.order.into(), args.packing());
            npz::write(out, &tensors, order, packing, existing, &mut |bytes| bar.inc(bytes))?;
        }
        (Format::Npy, _) => {
            return Err(Error::Refused(format!(
                "export {}: a .npy file holds one tensor, not {}; name the one to export, or write an .npz file",
                out.display(),
                tensors.len()
            )));
        }
    }
    bar.finish_and_clear();
    if let Some(note) = twice::note(&tensors) {
        message(&note);
    }
    message(&format!(
        "exported {}, {}, to {}{}",
        counted(tensors.len() as u64, "tensor"),
        HumanBytes(size_bytes),
        out.display(),
        if part_count > 1 { format!(", in {part_count} parts and an index") } else { String::new() }
    ));
    // Whoever finds both takes the one file.
    if part_count > 1 && out.exists() {
        message(&format!(
            "note: {} is there as well, from before; delete it, or it is taken for the model",
            out.display()
        ));
    }
    Ok(())
}

/// A flag that the kind of file has no use for was meant for another.
fn check_flags(args: &ExportArgs, format: Format) -> Result<()> {
    let refused = |what| Err(Error::Refused(format!("export {}: {what}", args.out.display())));
    match format {
        Format::Safetensors if args.order != Order::C => {
            refused("--order is for .npy and .npz files; others are always row-major")
        }
        Format::Npy | Format::Npz if args.max_shard_size.is_some() => {
            refused("--max-shard-size is for .safetensors files; others are always one file")
        }
        Format::Safetensors | Format::Npy if args.packing() == Packing::Deflated => {
            refused("--compress is for .npz files; others are never compressed")
        }
        _ => Ok(()),
    }
}
