//! `convert`: converts the elements of tensors to another dtype, in one commit.

mod plan;

use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use stridemap::DType;

use crate::args::{Existing, External, parse_dtype};
use crate::error::{Error, Result};
use crate::input::{check_writable, open_store};
use crate::names::{command_line, quoted, shell_word};
use crate::ui::{advance, counted, examples, message};
use crate::undo::freed::Freed;
use crate::undo::{Before, Replaced, kept_by_tags};
use plan::{Does, Plan};

/// Convert tensors to another dtype, in one commit: all or none
///
/// The results are those of PyTorch's to(), bit for bit. Without --as they replace the tensors. A glob or a prefix converts
/// floats to floats, integers to integers and complex numbers to complex ones; a tensor that is given by its name is always
/// converted. The others stay as they are; with --as they get a second name, so that the new names are complete, and none of
/// their elements is copied. Tensors of the same elements stay tied if they are converted together, and other views become
/// tensors of their own. Attributes are kept. The elements are verified first; damage is an error.
#[derive(clap::Args)]
#[command(after_help = examples(&["convert model.smap 'encoder.*' --to float16", "convert model.smap '*' --to bfloat16 --as 'half.{}'"]))]
#[command(override_usage = "stridemap convert <STORE> <NAME>... --to <DTYPE>")]
pub(crate) struct ConvertArgs {
    /// The store
    store: PathBuf,
    /// The tensors to convert, by name, by glob ('*.weight') or by prefix ('encoder.')
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The dtype to convert to: float16, bfloat16, float32, int8, ...
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    to: DType,
    /// Save the results under new names, in which {} stands for the name: 'half.{}'
    #[arg(long = "as", value_name = "NEW")]
    new: Option<String>,
    #[command(flatten)]
    existing: Existing,
    #[command(flatten)]
    before: Before,
    #[command(flatten)]
    external: External,
}

const NOTHING: &str = "nothing to convert: the tensors have this dtype, or are of another kind";

pub(crate) fn run(args: &ConvertArgs, out: &mut impl Write) -> Result<()> {
    if args.store.is_file() {
        let export = command_line("export", &[&args.store.to_string_lossy(), "OUT.safetensors"]);
        let why = format!("a file, not a store; to write another file: {export} --to {}", args.to);
        return Err(Error::at("convert", &args.store, why));
    }
    let store = open_store(&args.external.options(), &args.store)?;
    let mut txn = store.begin()?;
    let snapshot = store.latest()?;
    let plan = Plan::of(args, (&txn, &snapshot))?;
    let new_names = plan.new_names();
    let freed = Freed::of(&new_names, &snapshot)?;
    let replaced = Replaced::with(&new_names, &snapshot, &freed)?;
    let nothing = plan.items.iter().all(|item| item.does == Does::Nothing).then_some(NOTHING);
    if let (Some(why), Some(tag)) = (nothing, &args.before.tag) {
        // Without a commit there is no state before it.
        let advice = command_line("tag", &[&args.store.to_string_lossy(), tag]);
        let why = format!("{why}, so no tag is made; to tag the state as it is: {advice}");
        return Err(Error::Refused(format!("convert --tag {}: {why}", shell_word(tag))));
    }
    if args.existing.is_dry_run() {
        check_writable(&store)?;
        args.before.apply(&mut txn)?;
        plan.print(out)?;
        return replaced.print_advice(&args.before, &store, &args.store, out);
    }
    plan.note_others();
    if let Some(why) = nothing {
        message(&format!("note: {why}"));
        return Ok(());
    }
    plan.check_whole(&store)?;
    plan.note_copies()?;
    drop(snapshot); // The commit deletes what no snapshot needs.
    args.before.apply(&mut txn)?;
    let (before_bytes, after_bytes) = plan.sizes();
    let guards = plan.apply(&mut txn, advance("convert", before_bytes))?;
    let generation = txn.commit()?;
    drop(guards);
    let count = plan.count(|does| matches!(does, Does::Convert | Does::Tie(_)));
    let linked = match plan.count(|does| does == Does::Link) {
        0 => String::new(),
        links => format!(", and added {}", counted(links, "second name")),
    };
    let (before, after) = (HumanBytes(before_bytes), HumanBytes(after_bytes));
    let under = args.new.as_ref().map(|new| format!(", as {}", quoted(new))).unwrap_or_default();
    let tagged = args.before.described(generation);
    let (tensors, to) = (counted(count, "tensor"), args.to);
    message(&format!(
        "converted {tensors} to {to}{under}, {before} to {after}{linked}{tagged}: generation {generation}"
    ));
    replaced.report(&store, &args.store);
    replaced.note_left_behind(&store);
    // The commit has been made, so what is not found out is not said.
    let tagged = if args.before.tag.is_some() { Ok(freed.ids()) } else { kept_by_tags(&store, freed.ids()) };
    let unused = tagged.ok().and_then(|tagged| freed.note(&args.store, &tagged));
    unused.iter().for_each(|note| message(note));
    Ok(())
}
