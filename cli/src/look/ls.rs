//! `ls`: lists the tensors of a store or a file in another format.

use std::io::Write;
use std::path::PathBuf;

use stridemap::StoreOptions;

use crate::args::Reading;
use crate::error::Result;
use crate::input::Input;
use crate::names::quoted;
use crate::ui::{TensorRecord, write_json};

/// List the tensors of a store or a file, sorted by name: name, dtype and size
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap ls model.smap encoder.\n  stridemap ls model.pt")]
pub(crate) struct LsArgs {
    /// The store, or a file in another format, detected from its content
    #[arg(value_name = "STORE|FILE")]
    pub(crate) source: PathBuf,
    /// Only names with this prefix
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print one JSON object per tensor
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

pub(crate) fn run(args: &LsArgs, out: &mut impl Write) -> Result<()> {
    let source = Input::open(&args.source, &args.reading, &StoreOptions::new())?;
    for tensor in source.tensors(&args.prefix)? {
        let tensor = tensor?;
        if args.json {
            write_json(out, TensorRecord::from(tensor))?;
        } else {
            writeln!(out, "{}\t{}\t{:?}", quoted(&tensor.name), tensor.dtype, tensor.size())?;
        }
    }
    Ok(())
}
