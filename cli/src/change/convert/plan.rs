//! What a conversion does to each selected tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use stridemap::{
    ErrorKind, OnExisting, SharedGuard, Snapshot, StorageKind, Store, Tensor, TensorInfo, Transaction,
};
use stridemap_interop::gguf::TYPE_KEY;

use super::ConvertArgs;
use crate::change::cast::{Cast, is_converted, note_others};
use crate::change::shared_bytes;
use crate::error::{Error, Result};
use crate::names::{Pattern, names, new_name, pattern, quoted};
use crate::pieces::steady;
use crate::plan::{header, info, replacing};
use crate::ui::{counted, message};

/// What happens to a selected tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Convert,
    /// It is tied to an earlier item, whose position this is, and becomes a second name of its result.
    Tie(usize),
    /// It stays as it is, and gets a second name.
    Link,
    /// It stays as it is.
    Nothing,
}

/// A selected tensor.
pub(super) struct Item {
    info: TensorInfo,
    /// The kind of the result's storage.
    kind: StorageKind,
    new: String,
    pub(super) does: Does,
    /// What the dry run says about a tensor that is replaced.
    replacing: String,
    /// Whether no dtype has the type of its elements, so that it cannot be converted.
    is_blocks: bool,
}

/// What is converted, in ascending order of name.
pub(super) struct Plan<'a> {
    args: &'a ConvertArgs,
    pub(super) items: Vec<Item>,
}

impl<'a> Plan<'a> {
    pub(super) fn of(args: &'a ConvertArgs, (txn, snapshot): (&Transaction<'_>, &Snapshot)) -> Result<Self> {
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
            let is_converted =
                is_converted("convert", (&name, from), args.to, is_named(&name), blocks.as_deref())?;
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
            items.push(Item { info, kind, new, does, replacing, is_blocks: blocks.is_some() });
        }
        Ok(Plan { args, items })
    }

    /// Refuses damaged elements: their results would have digests of their own, which say that they are right.
    pub(super) fn check_whole(&self, store: &Store) -> Result<()> {
        let converted = self.items.iter().filter(|item| item.does == Does::Convert);
        let names: Vec<&str> = converted.map(|item| item.info.name.as_str()).collect();
        let Some(damage) = store.verify_tensors(&names, |_| ())?.findings.into_iter().next() else {
            return Ok(());
        };
        let message = format!("convert: {damage}; nothing was converted; leave out what is affected");
        Err(stridemap::Error::new(ErrorKind::Corrupt, message).into())
    }

    /// Returns the names under which something is saved.
    pub(super) fn new_names(&self) -> BTreeSet<String> {
        let saved = self.items.iter().filter(|item| item.does != Does::Nothing);
        saved.map(|item| item.new.clone()).collect()
    }

    pub(super) fn count(&self, is_counted: impl Fn(Does) -> bool) -> u64 {
        self.items.iter().filter(|item| is_counted(item.does)).count() as u64
    }

    /// Returns the bytes of the elements before and after the conversion.
    pub(super) fn sizes(&self) -> (u64, u64) {
        let converted = self.items.iter().filter(|item| item.does == Does::Convert);
        converted.fold((0, 0), |(before, after): (u64, u64), Item { info, .. }| {
            let numel = info.header.numel() as u64;
            let after_bytes = numel.saturating_mul(self.args.to.itemsize() as u64);
            (before.saturating_add(info.header.nbytes() as u64), after.saturating_add(after_bytes))
        })
    }

    /// Says which tensors a glob or a prefix has selected, but which are of another kind.
    pub(super) fn note_others(&self) {
        let others = self.items.iter().filter(|item| {
            let stays = matches!(item.does, Does::Link | Does::Nothing) && !item.is_blocks;
            stays && item.info.header.dtype() != self.args.to
        });
        note_others(self.args.to, others.map(|item| (item.info.name.as_str(), item.info.header.dtype())));
    }

    /// Says which of the converted tensors share bytes, but are no ties, and so become copies.
    pub(super) fn note_copies(&self) -> Result<()> {
        let converted = self.items.iter().filter(|item| item.does == Does::Convert);
        let to = self.args.to.itemsize() as u64;
        let size_bytes = |info: &TensorInfo| (info.header.numel() as u64).saturating_mul(to);
        let note = shared_bytes::note(
            converted.map(|item| Ok(item.info.clone())),
            size_bytes,
            "so each becomes a tensor of its own",
        )?;
        note.iter().for_each(|note| message(note));
        Ok(())
    }

    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
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
    pub(super) fn apply(
        &self,
        txn: &mut Transaction<'_>,
        progress: impl Fn(u64),
    ) -> Result<Vec<SharedGuard>> {
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
