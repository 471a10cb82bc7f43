//! An import that has been checked: what it would do, and doing it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use indicatif::HumanBytes;
use serde_json::{Value, json};
use stridemap::{ErrorKind, Snapshot, Store, TensorInfo, Transaction};
use stridemap_interop::Imported;

use super::ImportArgs;
use super::attributes::Merged;
use super::inputs::Input;
use crate::change::fuse::Fused;
use crate::change::target::open_existing;
use crate::error::{Error, Result};
use crate::plan::{described, header, info};
use crate::ui::{is_verbose, joined, message, short_record};
use crate::undo::Replaced;

/// Files to import, after they have been checked.
pub(super) struct Import<'a> {
    pub(super) args: &'a ImportArgs,
    pub(super) target: &'a Path,
    pub(super) inputs: &'a [Input<'a>],
    pub(super) attributes: &'a Merged<'a>,
    pub(super) fused: Fused<'a>,
}

impl Import<'_> {
    pub(super) fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        self.inputs.iter().flat_map(|(_, file)| file.tensors())
    }

    /// Returns what is imported as JSON. There is no generation yet in a dry run.
    pub(super) fn record(&self, generation: Option<u64>) -> Value {
        let (mut tensors, mut nbytes) = (Vec::new(), 0u64);
        for (path, file) in self.inputs {
            for info in file.tensors() {
                let record = short_record(&self.args.name_of(&info), &info.header);
                tensors.push(joined(record, json!({ "file": path.to_string_lossy() })));
                nbytes = nbytes.saturating_add(info.header.nbytes() as u64);
            }
        }
        let attributes: Vec<&String> = self.attributes.keys().collect();
        json!({ "is_dry_run": self.args.existing.is_dry_run(), "generation": generation,
            "tag": self.args.before.tag, "tensor_count": tensors.len(), "nbytes": nbytes, "tensors": tensors,
            "attributes": attributes })
    }

    /// Refuses to replace tensors of the store, unless `--force` is given.
    pub(super) fn check_existing(&self, snapshot: Option<&Snapshot>) -> Result<()> {
        let Some(snapshot) = snapshot.filter(|_| !self.args.existing.force) else { return Ok(()) };
        let names = self.tensors().map(|info| self.args.name_of(&info));
        let found = names.map(|name| info(snapshot, &name)).filter_map(Result::transpose);
        let found: Vec<TensorInfo> = found.collect::<stridemap::Result<_>>()?;
        let Some(first) = found.first() else { return Ok(()) };
        let (others, they) = match found.len() - 1 {
            0 => (String::new(), "it"),
            count => (format!(", and so do {count} more of the names to import"), "them"),
        };
        let (store, header) = (self.target.display(), header(first));
        let what = format!("{:?} exists in {store}, {header}{others}", first.name);
        Err(Error::Refused(format!("import: {what}; --force replaces {they}")))
    }

    /// Returns the tensors of the store that have names of imported ones.
    pub(super) fn replaced(&self, snapshot: Option<&Snapshot>) -> Result<Replaced> {
        let Some(snapshot) = snapshot.filter(|_| self.args.existing.force) else {
            return Ok(Replaced::default());
        };
        let names: BTreeSet<String> = self.tensors().map(|info| self.args.name_of(&info)).collect();
        Replaced::of(&names, snapshot)
    }

    /// Says how to get back what was replaced, if other processes have committed since that was examined.
    pub(super) fn report_replaced(&self, store: &Store) {
        let before = &self.args.before;
        let found = before.tag.as_ref().map(|tag| self.replaced(Some(&store.at(tag.as_str())?)));
        match found {
            Some(Ok(replaced)) => replaced.report(store, self.target),
            _ => message(
                "note: another process has committed meanwhile, so what was replaced is not known; --tag NAME tags the \
                 state before a change",
            ),
        }
    }

    /// Prints the tensors that would be imported, and those that they would replace.
    pub(super) fn print_items(&self, snapshot: Option<&Snapshot>, out: &mut impl Write) -> Result<()> {
        for tensor in self.tensors() {
            let name = self.args.name_of(&tensor);
            let there = snapshot.map(|snapshot| info(snapshot, &name)).transpose()?.flatten();
            let replacing = there.map_or_else(String::new, |there| format!(", replacing {}", header(&there)));
            writeln!(out, "  {}{replacing}", described(&name, &tensor))?;
        }
        Ok(())
    }

    /// Imports all files in one commit, and creates the store if there is none. Returns the new generation.
    pub(super) fn commit(&self, store: Option<&Store>, progress: impl Fn(u64)) -> Result<u64> {
        let options = self.args.external.options();
        let fill_existing = |store: &Store| {
            let mut txn = store.begin()?;
            self.args.before.apply(&mut txn)?;
            self.fill(&mut txn, || Ok(store.latest()?.attributes(&self.args.prefix)), &progress)?;
            Ok(txn.commit()?)
        };
        if let Some(store) = store {
            return fill_existing(store);
        }
        match options.create_with(self.target, |txn| self.fill(txn, || Ok(BTreeMap::new()), &progress)) {
            Ok(generation) => Ok(generation),
            // Another process may have created the store in the meantime.
            Err(e) => match open_existing("import", &options, self.target) {
                Ok(Some(store)) if e.kind() == ErrorKind::AlreadyExists => {
                    self.check_existing(Some(&store.snapshot()))?;
                    fill_existing(&store)
                }
                _ => Err(e.into()),
            },
        }
    }

    /// Imports all files. `current` returns the attributes that the store has, once the elements are written.
    fn fill(
        &self,
        txn: &mut Transaction<'_>,
        current: impl FnOnce() -> stridemap::Result<BTreeMap<String, String>>,
        mut progress: impl FnMut(u64),
    ) -> stridemap::Result<()> {
        let args = self.args;
        txn.on_existing(args.existing.policy());
        self.fused.import_into(txn, &mut progress)?;
        self.fused.described().filter(|_| is_verbose()).for_each(|line| message(&format!("fused {line}")));
        for (path, file) in self.inputs {
            let outcome = if args.in_place {
                file.adopt_into(txn, &args.prefix)?;
                "left in place".to_owned()
            } else {
                let is_selected = |name: &str| !self.fused.contains(name);
                describe(file.import_some_into(txn, &args.prefix, is_selected, &mut progress)?)
            };
            if is_verbose() {
                message(&format!("{}: {outcome}", path.display()));
            }
        }
        let owner = match args.prefix.as_str() {
            "" => "the store".to_owned(),
            prefix => format!("{prefix:?}"),
        };
        let current = if self.attributes.is_empty() { BTreeMap::new() } else { current()? };
        for (key, &(path, value)) in self.attributes {
            let differs = current.get(key).is_some_and(|current| current != value);
            let path = path.display();
            if differs && !args.existing.force {
                message(&format!("note: {owner} keeps its own {key:?}, not that of {path}, without --force"));
                continue;
            }
            if differs {
                message(&format!("note: the {key:?} of {path} replaces that of {owner}"));
            }
            txn.set_attribute(&args.prefix, key, value)?;
        }
        Ok(())
    }
}

fn describe(imported: Imported) -> String {
    let Imported { copied_bytes, shared_bytes, .. } = imported;
    let copied = format!("copied {}", HumanBytes(copied_bytes));
    let shared = format!("shared with the store: {}, no block copied", HumanBytes(shared_bytes));
    match (copied_bytes, shared_bytes) {
        (_, 0) => copied,
        (0, _) => shared,
        _ => format!("{shared}; {copied}"),
    }
}
