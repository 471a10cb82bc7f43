//! `convert`: converts the elements of tensors to another dtype, in one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use stridemap::{
    DType, ErrorKind, OnExisting, SharedGuard, Snapshot, StorageKind, Store, Tensor, TensorInfo, Transaction,
};
use stridemap_interop::gguf::TYPE_KEY;

use super::cast::{Cast, kind};
use super::plan::{header, info, replacing};
use crate::args::{Existing, External, parse_dtype};
use crate::error::{Error, Result};
use crate::history::{Before, Replaced};
use crate::input::{check_writable, open_store};
use crate::names::{Pattern, command_line, names, new_name, pattern, quoted, shell_word};
use crate::pieces::steady;
use crate::ui::{advance, counted, examples, message};

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

pub(crate) fn run(args: &ConvertArgs, out: &mut impl Write) -> Result<()> {
    let store = open_store(&args.external.options(), &args.store)?;
    let mut txn = store.begin()?;
    let snapshot = store.latest()?;
    let plan = Plan::of(args, (&txn, &snapshot))?;
    let replaced = Replaced::of(&plan.new_names(), &snapshot)?;
    if args.existing.is_dry_run() {
        check_writable(&store)?;
        args.before.apply(&mut txn)?;
        plan.print(out)?;
        return replaced.print_advice(&args.before, &store, &args.store, out);
    }
    plan.note_others();
    if plan.items.iter().all(|item| item.does == Does::Nothing) {
        let why = "nothing to convert: the tensors have this dtype, or are of another kind";
        if let Some(tag) = &args.before.tag {
            // Without a commit there is no state before it.
            let advice = command_line("tag", &[&args.store.to_string_lossy(), tag]);
            let why = format!("{why}, so no tag was made; to tag the state as it is: {advice}");
            return Err(Error::Refused(format!("convert --tag {}: {why}", shell_word(tag))));
        }
        message(&format!("note: {why}"));
        return Ok(());
    }
    plan.check_whole(&store)?;
    plan.note_ties(&snapshot)?;
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
    Ok(())
}

/// What happens to a selected tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Convert,
    /// It is tied to an earlier item, whose position this is, and becomes a second name of its result.
    Tie(usize),
    /// It stays as it is, and gets a second name.
    Link,
    /// It stays as it is.
    Nothing,
}

/// A selected tensor.
struct Item {
    info: TensorInfo,
    /// The kind of the result's storage.
    kind: StorageKind,
    new: String,
    does: Does,
    /// What the dry run says about a tensor that is replaced.
    replacing: String,
}

/// What is converted, in ascending order of name.
struct Plan<'a> {
    args: &'a ConvertArgs,
    items: Vec<Item>,
}

impl<'a> Plan<'a> {
    fn of(args: &'a ConvertArgs, (txn, snapshot): (&Transaction<'_>, &Snapshot)) -> Result<Self> {
        let patterns: Vec<Pattern> =
            args.names.iter().map(|text| pattern(text, snapshot)).collect::<Result<_>>()?;
        let is_named = |name: &str| patterns.iter().any(|pattern| pattern.is_name() && pattern.text == name);
        let names = names(&args.names, snapshot)?;
        let template = args.new.as_deref();
        if let Some(new) = template.filter(|new| !new.contains("{}") && names.len() > 1) {
            return Err(Error::Refused(format!(
                "convert --as {new:?}: {} are selected; {{}} stands for the name of each, as in 'half.{{}}'",
                counted(names.len() as u64, "tensor")
            )));
        }
        let kinds: BTreeMap<u64, StorageKind> =
            snapshot.storages().map(|it| it.map(|it| (it.id, it.kind))).collect::<stridemap::Result<_>>()?;
        // The positions of the items that are converted, by the storage and the position of the first element in it.
        let mut converted: BTreeMap<(u64, usize), Vec<usize>> = BTreeMap::new();
        let mut items: Vec<Item> = Vec::new();
        for name in names {
            let Some(info) = info(snapshot, &name)? else {
                snapshot.load(&name).map(drop)?; // says which names there are
                continue;
            };
            let from = info.header.dtype();
            let blocks = snapshot.attributes(&name).remove(TYPE_KEY);
            if let Some(of) = blocks.as_ref().filter(|_| is_named(&name)) {
                let why = format!("its elements are the bytes of {of}, which its attribute {TYPE_KEY} says");
                return Err(Error::Refused(format!(
                    "convert {name:?}: {why}; no conversion takes them apart"
                )));
            }
            let is_alike = blocks.is_none() && kind(from) == kind(args.to);
            let is_converted = from != args.to && (is_named(&name) || is_alike);
            if is_converted {
                Tensor::zeros(from, &[0])?.to_dtype(args.to).map(drop)?; // refuses a conversion that does not exist
            }
            let new = match template {
                Some(new) if new.contains("{}") => new.replace("{}", &name),
                Some(new) => new_name("convert", new, txn)?,
                None => name.clone(),
            };
            let does = if is_converted {
                let there = converted.entry((info.storage_id, info.header.storage_offset())).or_default();
                let is_tied = |at: &usize| items.get(*at).is_some_and(|item| item.info.header == info.header);
                match there.iter().copied().find(is_tied) {
                    Some(first) => Does::Tie(first),
                    None => {
                        there.push(items.len());
                        Does::Convert
                    }
                }
            } else if new == name {
                Does::Nothing
            } else {
                Does::Link
            };
            let replacing = match new == name {
                true => String::new(),
                false => replacing("convert", &new, (txn, snapshot), &args.existing)?,
            };
            // Others may write the elements of mutable and live tensors, and expect to be able to.
            let kind = match kinds.get(&info.storage_id) {
                Some(kind @ (StorageKind::Mutable | StorageKind::Live)) => *kind,
                _ => StorageKind::Sealed,
            };
            items.push(Item { info, kind, new, does, replacing });
        }
        Ok(Plan { args, items })
    }

    /// Refuses damaged elements: their results would have digests of their own, which say that they are right.
    fn check_whole(&self, store: &Store) -> Result<()> {
        let converted = self.items.iter().filter(|item| item.does == Does::Convert);
        let names: Vec<&str> = converted.map(|item| item.info.name.as_str()).collect();
        let Some(damage) = store.verify_tensors(&names, |_| ())?.findings.into_iter().next() else {
            return Ok(());
        };
        let message = format!("convert: {damage}; nothing was converted; leave out what is affected");
        Err(stridemap::Error::new(ErrorKind::Corrupt, message).into())
    }

    /// Returns the names under which something is saved.
    fn new_names(&self) -> BTreeSet<String> {
        let saved = self.items.iter().filter(|item| item.does != Does::Nothing);
        saved.map(|item| item.new.clone()).collect()
    }

    fn count(&self, is_counted: impl Fn(Does) -> bool) -> u64 {
        self.items.iter().filter(|item| is_counted(item.does)).count() as u64
    }

    /// Returns the bytes of the elements before and after the conversion.
    fn sizes(&self) -> (u64, u64) {
        let converted = self.items.iter().filter(|item| item.does == Does::Convert);
        converted.fold((0, 0), |(before, after): (u64, u64), Item { info, .. }| {
            let numel = info.header.numel() as u64;
            let after_bytes = numel.saturating_mul(self.args.to.itemsize() as u64);
            (before.saturating_add(info.header.nbytes() as u64), after.saturating_add(after_bytes))
        })
    }

    /// Says which tensors a glob or a prefix has selected, but which are of another kind.
    fn note_others(&self) {
        let mut others = self.items.iter().filter(|item| {
            matches!(item.does, Does::Link | Does::Nothing) && item.info.header.dtype() != self.args.to
        });
        let Some(first) = others.next() else { return };
        let (count, to) = (1 + others.count() as u64, self.args.to);
        let (stay, them) = if count == 1 { ("stays as it is", "it") } else { ("stay as they are", "them") };
        message(&format!(
            "note: {} of another kind than {to} {stay}, such as {}, {}; to convert {them}, give the name",
            counted(count, "tensor"),
            quoted(&first.info.name),
            first.info.header.dtype()
        ));
    }

    /// Says which tensors were tied to one that is replaced, and stay as they are.
    fn note_ties(&self, snapshot: &Snapshot) -> Result<()> {
        let selected: BTreeSet<&str> = self.items.iter().map(|item| item.info.name.as_str()).collect();
        let mut replaced: BTreeMap<(u64, usize), Vec<&TensorInfo>> = BTreeMap::new();
        for Item { info, new, does, .. } in &self.items {
            if *does == Does::Convert && *new == info.name {
                replaced.entry((info.storage_id, info.header.storage_offset())).or_default().push(info);
            }
        }
        for other in snapshot.iter_tensors("")? {
            let other = other?;
            let there = replaced.get(&(other.storage_id, other.header.storage_offset()));
            let tied = there.into_iter().flatten().find(|info| info.header == other.header);
            if let Some(info) = tied.filter(|_| !selected.contains(other.name.as_str())) {
                let (name, other) = (quoted(&info.name), quoted(&other.name));
                message(&format!(
                    "note: {other} stays as it is, and is no longer tied to {name}; give both names to keep the tie"
                ));
            }
        }
        Ok(())
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        for Item { info, new, does, replacing, .. } in &self.items {
            let (name, header, to) = (quoted(&info.name), header(info), self.args.to);
            let under = if *new == info.name { String::new() } else { format!(" as {}", quoted(new)) };
            match does {
                Does::Convert => writeln!(out, "would convert {name}, {header}, to {to}{under}{replacing}")?,
                Does::Tie(first) => {
                    let tied = self.items.get(*first).map(|first| quoted(&first.new)).unwrap_or_default();
                    writeln!(
                        out,
                        "would convert {name}, {header}, to {to}{under}{replacing}, tied to {tied}"
                    )?;
                }
                Does::Link => {
                    writeln!(out, "would add {}, a second name of {name}, {header}{replacing}", quoted(new))?;
                }
                Does::Nothing => writeln!(out, "would leave {name}, {header}, as it is")?,
            }
        }
        Ok(())
    }

    /// Makes the changes. Returns guards, to be held until they are committed: nobody changes an element meanwhile that has
    /// been converted, and whose change would be lost.
    fn apply(&self, txn: &mut Transaction<'_>, progress: impl Fn(u64)) -> Result<Vec<SharedGuard>> {
        // The tensors are replaced that are converted, and others only with --force, which has been checked.
        txn.on_existing(OnExisting::Replace);
        // A result may replace a tensor that another one is made from.
        let load = |item: &Item| txn.load(&item.info.name);
        let tensors: Vec<Tensor> = self.items.iter().map(load).collect::<stridemap::Result<_>>()?;
        let mut guards = Vec::new();
        for (item, tensor) in self.items.iter().zip(&tensors).filter(|(item, _)| item.does == Does::Convert) {
            let (tensor, guard) = steady(tensor)?;
            guards.extend(guard);
            let cast = Cast { tensor, to: self.args.to, progress: &progress };
            txn.save_as(&item.new, &cast, item.kind)?;
        }
        for (item, tensor) in self.items.iter().zip(tensors) {
            let view = match item.does {
                Does::Convert | Does::Nothing => continue,
                Does::Link => tensor,
                Does::Tie(first) => match self.items.get(first) {
                    Some(first) => txn.load(&first.new)?,
                    None => continue,
                },
            };
            txn.save_view(&item.new, &view)?;
        }
        for item in self.items.iter().filter(|item| item.new != item.info.name) {
            for (key, value) in txn.attributes(&item.info.name) {
                txn.set_attribute(&item.new, &key, &value)?;
            }
        }
        Ok(guards)
    }
}
