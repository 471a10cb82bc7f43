//! `copy`: copies tensors to another store, in one commit.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use stridemap::maintenance::Copied;
use stridemap::{ErrorKind, Snapshot, Store, Transaction};

use super::target::open_existing;
use crate::args::{Existing, External};
use crate::at::split;
use crate::error::{Error, Result};
use crate::in_place::note_files_of_copy;
use crate::input::{check_writable, open_at};
use crate::names::{command_line, names, one_line, pattern, quoted, shell_word};
use crate::plan::{described, header, info};
use crate::remote::shown;
use crate::ui::{advance, counted, examples, message};
use crate::undo::{Before, Replaced};

/// Copy tensors to another store, in one commit: all or none
///
/// STORE2 is created if it does not exist. Each storage is copied once, and tensors that share it share it in STORE2, too.
/// It is verified while it is copied, and shares blocks with the original where the file system supports it and all of its
/// bytes are used. Attributes of the tensors are copied, and those of prefixes of their names, but not those of the store.
#[derive(clap::Args)]
#[command(after_help = examples(&["copy model.smap encoder. head.weight other.smap", "copy model.smap '*' other.smap --prefix old. -n"]))]
#[command(override_usage = "stridemap copy [OPTIONS] <STORE> <NAME>... <STORE2>")]
pub(crate) struct CopyArgs {
    /// The store to copy from, its URL, or a tagged generation: STORE@TAG, URL@TAG
    pub(crate) store: PathBuf,
    /// The tensors to copy, by name, by glob ('*.weight') or by prefix ('encoder.'), then the store to copy to
    #[arg(required = true, value_name = "NAME STORE2")]
    words: Vec<OsString>,
    /// Prefix every name with P
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    existing: Existing,
    #[command(flatten)]
    before: Before,
    #[command(flatten)]
    external: External,
}

pub(crate) fn run(args: &CopyArgs, out: &mut impl Write) -> Result<()> {
    let (target, texts) = target_and_names(args)?;
    let options = args.external.options();
    check_is_no_file(args, target, &texts)?;
    let (source, snapshot) = open_at(&options, &args.store)?;
    check_is_store(target, &snapshot)?;
    let names = names(&texts, &snapshot)?;
    for name in &names {
        if !snapshot.contains(name)? {
            snapshot.load(name).map(drop)?; // says which names there are
        }
    }
    let names: BTreeMap<String, String> =
        names.into_iter().map(|name| (name.clone(), format!("{}{name}", args.prefix))).collect();
    let attributes = attributes_of_prefixes(&names, &snapshot)?;
    let store = open_existing("copy", &options, target)?;
    if store.as_ref().is_some_and(|store| is_same(store, &source)) {
        check_is_needed(args, &texts)?;
    }
    let copy = Copy { args, target, source: &snapshot, names: &names, attributes: &attributes };
    let there = store.as_ref().map(Store::snapshot);
    copy.check_existing(there.as_ref())?;
    if let (None, Some(tag)) = (&store, &args.before.tag) {
        let why =
            format!("{} does not exist yet, so there is no state that could be tagged", target.display());
        return Err(Error::Refused(format!("copy --tag {tag}: {why}")));
    }
    let new_names: BTreeSet<String> = names.values().cloned().collect();
    let replaced = match &there {
        Some(there) if args.existing.force => Replaced::of(&new_names, there)?,
        _ => Replaced::default(),
    };
    if args.existing.is_dry_run() {
        if let Some(store) = &store {
            check_writable(store)?;
            args.before.apply(&mut store.begin()?)?;
        }
        copy.print_items(there.as_ref(), out)?;
        let Some(store) = store else { return Ok(()) };
        return replaced.print_advice(&args.before, &store, target, out);
    }
    drop(there); // The commit deletes what no snapshot needs.
    let (generation, copied) = copy.commit(store.as_ref(), advance("copy", 0))?;
    let shared = match copied.shared_bytes {
        0 => String::new(),
        bytes => format!("; {} share their blocks with {}", HumanBytes(bytes), shown(&args.store)),
    };
    let (tensors, size) = (
        counted(copied.tensor_count, "tensor"),
        HumanBytes(copied.copied_bytes.saturating_add(copied.shared_bytes)),
    );
    let tagged = args.before.described(generation);
    message(&format!(
        "copied {tensors}, {size}, into {}{shared}{tagged}: generation {generation}",
        target.display()
    ));
    note_files_of_copy(target, &snapshot, |name| names.contains_key(name))?;
    if let Some(store) = &store {
        replaced.report(store, target);
        replaced.note_left_behind(store);
    }
    Ok(())
}

/// Returns the path of the store to copy to, and what selects the tensors.
fn target_and_names(args: &CopyArgs) -> Result<(&Path, Vec<String>)> {
    let refused = |why: String| Err(Error::Refused(format!("copy: {why}")));
    let Some((target, names)) = args.words.split_last().filter(|(_, names)| !names.is_empty()) else {
        return refused(
            "the arguments are STORE NAME... STORE2, and one of them is missing; '*' stands for all names"
                .to_owned(),
        );
    };
    let mut texts = Vec::new();
    for name in names {
        match name.to_str() {
            Some(text) => texts.push(text.to_owned()),
            None => return refused(format!("the name {name:?} is not UTF-8")),
        }
    }
    Ok((Path::new(target), texts))
}

/// Refuses a file in another format as the source, which import reads.
fn check_is_no_file(args: &CopyArgs, target: &Path, texts: &[String]) -> Result<()> {
    if !args.store.is_file() {
        return Ok(());
    }
    let is_all = texts.iter().any(|text| text == "*");
    let only = texts.iter().filter(|_| !is_all).map(|text| format!(" --only {}", shell_word(text)));
    let command = format!("import{}", only.collect::<String>());
    let import = command_line(&command, &[&args.store.to_string_lossy(), &target.to_string_lossy()]);
    Err(Error::at(
        "copy",
        &args.store,
        format!("this is a file, and copy takes a store; import it: {import}"),
    ))
}

/// Returns whether two handles are of one directory. A copy that `cp -r` made of a store has its uuid, but is another store.
fn is_same(a: &Store, b: &Store) -> bool {
    let [a, b] = [a, b].map(|store| fs::metadata(store.path()).ok().map(|it| (it.dev(), it.ino())));
    a.is_some() && a == b
}

/// Refuses to copy within a store what a command does without copying elements. Tensors of a tag can be copied under other
/// names.
fn check_is_needed(args: &CopyArgs, texts: &[String]) -> Result<()> {
    let refused = |why: String| Err(Error::at("copy", &args.store, why));
    match split(&args.store) {
        None => {
            let view = command_line("view", &[&args.store.to_string_lossy(), "NAME", "NEW"]);
            refused(format!("both are the same store; to add a second name for a tensor: {view}"))
        }
        Some((store, tag)) if args.prefix.is_empty() => {
            let words: Vec<&str> = texts.iter().map(String::as_str).collect();
            let store = store.to_string_lossy();
            let restore = command_line("restore", &[&[&*store, tag], &words[..]].concat());
            refused(format!(
                "both are the same store; to bring tensors of the tag back under their names, without a copy: {restore}; \
                 --prefix P copies them under other names"
            ))
        }
        Some(_) => Ok(()),
    }
}

/// Refuses to create a store at a path that selects tensors: the user probably forgot the store.
fn check_is_store(target: &Path, snapshot: &Snapshot) -> Result<()> {
    let Some(text) = target.to_str().filter(|_| target.symlink_metadata().is_err()) else { return Ok(()) };
    let pattern = pattern(text, snapshot)?;
    match snapshot.names()?.iter().find(|name| pattern.matches(name)) {
        Some(name) => {
            let why =
                format!("this selects {}, and the last argument must be the store to copy to", quoted(name));
            Err(Error::at("copy", target, why))
        }
        None => Ok(()),
    }
}

/// Attributes by scope, each with its key and value.
type Attributes = Vec<(String, String, String)>;

/// Returns the attributes of the prefixes of these names. Those of tensors are copied with the tensors.
fn attributes_of_prefixes(names: &BTreeMap<String, String>, snapshot: &Snapshot) -> Result<Attributes> {
    let mut attributes = Attributes::new();
    for ((scope, key), value) in snapshot.all_attributes() {
        let from_scope = (Bound::Included(scope.as_str()), Bound::Unbounded);
        let first = names.range::<str, _>(from_scope).next();
        let is_prefix = !scope.is_empty() && first.is_some_and(|(name, _)| name.starts_with(scope));
        if is_prefix && !snapshot.contains(scope)? {
            attributes.push((scope.clone(), key.clone(), value.clone()));
        }
    }
    Ok(attributes)
}

/// What is copied, after it has been checked.
struct Copy<'a> {
    args: &'a CopyArgs,
    target: &'a Path,
    source: &'a Snapshot,
    /// The names of the tensors, each with its new name.
    names: &'a BTreeMap<String, String>,
    /// The attributes of prefixes.
    attributes: &'a Attributes,
}

impl Copy<'_> {
    /// Refuses to replace tensors and attributes of the store, unless `--force` is given.
    fn check_existing(&self, there: Option<&Snapshot>) -> Result<()> {
        let Some(there) = there.filter(|_| !self.args.existing.force) else { return Ok(()) };
        let refused = |why: String| Err(Error::Refused(format!("copy: {why}")));
        let mut found = Vec::new();
        for name in self.names.values() {
            found.extend(info(there, name)?);
        }
        let store = self.target.display();
        if let Some(first) = found.first() {
            let (others, they) = match found.len() - 1 {
                0 => (String::new(), "it"),
                count => (format!(", and so do {count} more of the names"), "them"),
            };
            return refused(format!(
                "{:?} exists in {store}, {}{others}; --force replaces {they}, and --prefix P copies under other names",
                first.name,
                header(first)
            ));
        }
        for (scope, key, value) in self.attributes {
            let scope = format!("{}{scope}", self.args.prefix);
            if let Some(other) = there.attributes(&scope).remove(key).filter(|other| other != value) {
                return refused(format!(
                    "the attribute {key:?} of {scope:?} would replace that in {store}, {other:?}; --force replaces it"
                ));
            }
        }
        Ok(())
    }

    /// Prints the tensors that would be copied, and those that they would replace.
    fn print_items(&self, there: Option<&Snapshot>, out: &mut impl Write) -> Result<()> {
        let new = if there.is_none() { ", a new store" } else { "" };
        let (tensors, target) =
            (counted(self.names.len() as u64, "tensor"), one_line(&self.target.to_string_lossy()));
        writeln!(out, "would copy {tensors} into {target}{new}")?;
        for (name, new) in self.names {
            let Some(tensor) = info(self.source, name)? else { continue };
            let replaced = there.map(|there| info(there, new)).transpose()?.flatten();
            let replacing = replaced.map_or_else(String::new, |old| format!(", replacing {}", header(&old)));
            writeln!(out, "  {}{replacing}", described(new, &tensor))?;
        }
        Ok(())
    }

    /// Copies all tensors in one commit, and creates the store if there is none. Returns the new generation.
    fn commit(&self, store: Option<&Store>, progress: impl Fn(u64)) -> Result<(u64, Copied)> {
        let options = self.args.external.options();
        let copied = Cell::new(Copied::default());
        let fill = |txn: &mut Transaction<'_>| self.fill(txn, &progress).map(|done| copied.set(done));
        let fill_existing = |store: &Store| {
            let mut txn = store.begin()?;
            self.args.before.apply(&mut txn)?;
            fill(&mut txn)?;
            Ok::<u64, Error>(txn.commit()?)
        };
        let generation = match store {
            Some(store) => fill_existing(store)?,
            None => match options.create_with(self.target, fill) {
                Ok(generation) => generation,
                // Another process may have created the store in the meantime.
                Err(e) => match open_existing("copy", &options, self.target) {
                    Ok(Some(store)) if e.kind() == ErrorKind::AlreadyExists => {
                        self.check_existing(Some(&store.snapshot()))?;
                        fill_existing(&store)?
                    }
                    _ => return Err(e.into()),
                },
            },
        };
        Ok((generation, copied.get()))
    }

    fn fill(&self, txn: &mut Transaction<'_>, progress: impl Fn(u64)) -> stridemap::Result<Copied> {
        txn.on_existing(self.args.existing.policy());
        let names: Vec<(&str, &str)> = self.names.iter().map(|(name, new)| (&**name, &**new)).collect();
        let copied = txn.copy_from(self.source, &names, progress)?;
        for (scope, key, value) in self.attributes {
            txn.set_attribute(&format!("{}{scope}", self.args.prefix), key, value)?;
        }
        Ok(copied)
    }
}
