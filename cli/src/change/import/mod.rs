//! `import`: copies or adopts files in other formats into a store, in one commit.

mod attributes;
mod inputs;
mod plan;

use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use stridemap::{Store, TensorInfo};
use stridemap_format::check_attributes;
use stridemap_format::limits::MAX_ATTRIBUTES_BYTES;

use super::fuse::Fused;
use super::select::Selection;
use super::stdin;
use super::target::open_existing;
use crate::args::{Existing, External, Reading};
use crate::error::{Error, Result};
use crate::input::check_writable;
use crate::names::{command_line, one_line, quoted, shell_word};
use crate::ui::{advance, counted, examples, message, write_json};
use crate::undo::Before;
use attributes::merge_attributes;
use inputs::{check_locations, check_names, open, store_and_files};
use plan::Import;

pub(super) use attributes::note_long_attributes;

/// Copy the tensors of files into a store, in one commit
///
/// The files are .safetensors, .npy, .npz, .pt or .gguf. To import a model in several files, name its index, such as
/// model.safetensors.index.json. The metadata of a .safetensors or .gguf file and the plain values of a .pt file
/// become attributes of the store; what is too large for that becomes tensors of bytes. An import that fails or is killed
/// changes nothing, and creates no store. A killed import can leave a .stage-* directory beside the path of the
/// store; that directory can be deleted. With --verbose, a line for each file tells whether it was copied or shares
/// disk blocks with the store.
#[derive(clap::Args)]
#[command(after_help = examples(&[
    "import model.safetensors bias.npy model.smap",
    "import model.safetensors model.smap --in-place",
    "import checkpoint.pt model.smap --rename 'module.*=*'",
    "import moe.safetensors moe.smap --fuse 'layers.{}.experts.{}.up'",
]))]
#[command(override_usage = "stridemap import [OPTIONS] <FILE>... <STORE>")]
pub(crate) struct ImportArgs {
    /// Files to import, then the store, which is created if it does not exist. The format is detected from the content;
    /// an unnamed tensor, as in .npy, is named after its file. - is standard input, whose unnamed tensor is "stdin"
    #[arg(required = true, value_name = "FILE... STORE")]
    pub(crate) paths: Vec<PathBuf>,
    /// Save only headers, and leave the elements in the files, which must not change afterwards
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) external: External,
    /// Prefix every name with P; the attributes of the files become those of P
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Store the tensors whose names in the store are PATTERN, with a number in the place of {}, one after another in the order
    /// of the numbers: 'experts.{}.up', so that view --stack gives them one name. If there are several {}, the last is this
    /// number. Repeatable
    #[arg(long, value_name = "PATTERN", conflicts_with = "in_place")]
    pub(crate) fuse: Vec<String>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    before: Before,
}

impl ImportArgs {
    /// Returns the name that a tensor of a file has in the store.
    fn name_of(&self, tensor: &TensorInfo) -> String {
        format!("{}{}", self.prefix, tensor.name)
    }
}

pub(crate) fn run(args: &ImportArgs, out: &mut impl Write) -> Result<()> {
    // Refuse unsuitable files before the store is created.
    let (target, files) = store_and_files(args)?;
    let mut inputs = open(args, files, stdin::open(files, target)?)?;
    let kept = args.selection.apply(inputs.iter_mut().map(|(_, file)| file))?;
    let tensor_count = check_names(&inputs, &args.prefix)?;
    let attributes = merge_attributes(&kept, &inputs)?;
    inputs.iter().for_each(|(path, file)| note_long_attributes(path, file));
    let texts = attributes.iter().map(|(key, &(_, value))| (args.prefix.as_str(), key.as_str(), value));
    let attributes_bytes = attributes.iter().map(|(key, (_, value))| key.len() + value.len()).sum::<usize>();
    if attributes_bytes > MAX_ATTRIBUTES_BYTES {
        let what = format!("the attributes of the files have {attributes_bytes} bytes");
        let why = format!("{what}, but a store holds at most {MAX_ATTRIBUTES_BYTES}; --only leaves some out");
        return Err(Error::Refused(format!("import: {why}")));
    }
    check_attributes(texts).map_err(|e| Error::Refused(format!("import: {e}")))?;
    let size_bytes = inputs.iter().map(|(_, file)| file.size_bytes()).fold(0, u64::saturating_add);
    if args.in_place {
        check_locations(&inputs, target, args.external.allowed())?;
        inputs.iter().try_for_each(|(_, file)| file.check_adoptable())?;
    }

    let files = inputs.iter().map(|(_, file)| file);
    let fused = Fused::of(&args.fuse, files, |tensor| args.name_of(tensor))?;
    let import = Import { args, target, inputs: &inputs, attributes: &attributes, fused };
    let store = open_existing("import", &args.external.options(), target)?;
    let snapshot = store.as_ref().map(Store::snapshot);
    import.check_existing(snapshot.as_ref())?;
    if let (None, Some(tag)) = (&store, &args.before.tag) {
        let why =
            "there is no store yet whose state could be tagged; to tag what is imported, run this afterwards";
        let advice = command_line("tag", &[&target.to_string_lossy(), tag]);
        return Err(Error::Refused(format!("import --tag {}: {why}: {advice}", shell_word(tag))));
    }
    let replaced = import.replaced(snapshot.as_ref())?;
    let (tensors, size) = (counted(tensor_count, "tensor"), HumanBytes(size_bytes));
    if args.existing.is_dry_run() {
        if let Some(store) = &store {
            check_writable(store)?;
            args.before.apply(&mut store.begin()?)?;
        }
        if args.json {
            return write_json(out, import.record(None));
        }
        let new = if store.is_none() { ", a new store" } else { "" };
        writeln!(out, "would import {tensors}, {size}, into {}{new}", one_line(&target.to_string_lossy()))?;
        import.print_items(snapshot.as_ref(), out)?;
        import.fused.described().try_for_each(|line| writeln!(out, "would fuse {line}"))?;
        let Some(store) = store else { return Ok(()) };
        return replaced.print_advice(&args.before, &store, target, out);
    }
    let is_word = args.prefix.ends_with(|c: char| c.is_alphanumeric());
    if let Some(first) = import.tensors().next().filter(|_| is_word) {
        let name = args.name_of(&first);
        message(&format!("note: --prefix has no dot at its end, so the names are like {}", quoted(&name)));
    }
    let examined = snapshot.map(|snapshot| snapshot.generation());
    let progress = advance("import", if args.in_place { 0 } else { size_bytes });
    let generation = import.commit(store.as_ref(), progress)?;
    let tagged = args.before.described(generation);
    let done = if args.in_place { "adopted" } else { "imported" };
    message(&format!("{done} {tensors}, {size}, into {}{tagged}: generation {generation}", target.display()));
    if args.json {
        write_json(out, import.record(Some(generation)))?;
    }
    match &store {
        Some(store) if examined.is_some_and(|examined| examined + 1 == generation) => {
            replaced.report(store, target);
            replaced.note_left_behind(store);
        }
        Some(store) if args.existing.force => import.report_replaced(store),
        _ => {}
    }
    Ok(())
}
