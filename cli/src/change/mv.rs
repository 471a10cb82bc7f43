//! `mv`: renames one tensor, or all that a glob or a prefix selects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use stridemap::{Snapshot, StoreOptions, Transaction};

use super::edit::{Change, commit};
use super::rename::PatternRename;
use crate::args::Existing;
use crate::error::{Error, Result};
use crate::names::{Pattern, name, new_name, pattern, quoted, selecting_hint, shell_word};
use crate::plan::{header, info, replacing};
use crate::ui::{counted, examples};
use crate::undo::Before;

/// Rename a tensor, or many in one commit: all or none
///
/// If NAME is a glob, each * in NEW stands for what the one in NAME matched. If NAME is a prefix, such as 'bert.', it is
/// replaced by NEW, which may be empty. Attributes of the tensors, and of prefixes that match, are renamed, too. If two
/// tensors would get the same name, or one that exists, nothing is renamed.
#[derive(clap::Args)]
#[command(after_help = examples(&["mv model.smap weight encoder.weight", "mv model.smap 'bert.*' 'encoder.*' -n"]))]
pub(crate) struct MvArgs {
    /// The store
    store: PathBuf,
    /// The name of the tensor
    #[arg(value_name = "NAME")]
    old: String,
    /// The new name
    new: String,
    #[command(flatten)]
    existing: Existing,
    #[command(flatten)]
    before: Before,
}

pub(crate) fn mv(args: &MvArgs, out: &mut impl Write) -> Result<()> {
    let options = (StoreOptions::new(), &args.existing, &args.before);
    commit(&args.store, options, out, |txn, snapshot| {
        let old = pattern(&args.old, txn)?;
        if old.is_name() {
            return rename(args, &old.text, (txn, snapshot));
        }
        Plan::of(&star_pattern(args, &old, txn)?, (txn, snapshot), &args.existing)?.apply(txn)
    })
}

fn rename(
    args: &MvArgs,
    old: &str,
    (txn, snapshot): (&mut Transaction<'_>, &Snapshot),
) -> Result<Option<Change>> {
    if let Some(why) = selecting_hint(old, txn)? {
        return Err(Error::Refused(format!("mv: {why}")));
    }
    let new = new_name("mv", &args.new, txn)?;
    if old == new {
        txn.rename(old, &new)?;
        return Ok(None);
    }
    let replacing = replacing("mv", &new, (txn, snapshot), &args.existing)?;
    txn.rename(old, &new)?;
    let what = format!("{} to {}{replacing}", quoted(old), quoted(&new));
    Ok(Some(Change::of_one("rename", "renamed", what, new)))
}

/// Returns the pattern of the arguments, in which each `*` stands for the same text in both names. A prefix is one with
/// a `*` at its end.
fn star_pattern(args: &MvArgs, old: &Pattern, txn: &Transaction<'_>) -> Result<PatternRename> {
    let refused = |why: String| Err(Error::Refused(format!("mv: {why}")));
    // A text in quotes is the name of one tensor.
    let new = if name(&args.new, txn)? == args.new { args.new.as_str() } else { "" };
    let [in_old, in_new] = [&old.text, new].map(|text| text.matches('*').count());
    if old.is_prefix() {
        let is_prefix = args.new.is_empty() || new.ends_with(['.', '/']);
        return match is_prefix && in_new == 0 {
            true => Ok(PatternRename { old: format!("{}*", old.text), new: format!("{new}*") }),
            false => refused(format!(
                "{:?} is a prefix, and stands for all names that begin with it; write the new name as a prefix, too, such \
                 as {}",
                old.text,
                shell_word(&format!(
                    "{}{}",
                    args.new.trim_matches(['*', '.', '/', '\'', '"']),
                    old.text.chars().last().unwrap_or('.')
                ))
            )),
        };
    }
    if let Some(other) = old.text.chars().find(|c| "?[{\\".contains(*c)) {
        return refused(format!(
            "{:?} has {other:?}, which stands for a text that the new name cannot repeat; only * can",
            old.text
        ));
    }
    if in_old != in_new {
        return refused(format!(
            "{:?} has {in_old} *, and the new name {:?} has {in_new}; each stands for the same text in both",
            old.text, args.new
        ));
    }
    Ok(PatternRename { old: old.text.clone(), new: new.to_owned() })
}

/// What a pattern renames.
struct Plan {
    /// Each tensor that gets a new name, with that name.
    renames: BTreeMap<String, String>,
    /// The attributes of prefixes that match, as scope, key and value, each with its new scope.
    attributes: Vec<((String, String, String), String)>,
    /// The tensors that are replaced, each with its header.
    replaced: BTreeMap<String, String>,
}

impl Plan {
    /// Plans the renames, and refuses them if any of them is not certain or would replace a tensor without `--force`.
    fn of(
        pattern: &PatternRename,
        (txn, snapshot): (&Transaction<'_>, &Snapshot),
        existing: &Existing,
    ) -> Result<Self> {
        let refused = |why: String| Err(Error::Refused(format!("mv: {why}")));
        let (mut renames, mut origins) = (BTreeMap::new(), BTreeMap::new());
        let names = txn.names()?;
        for old in &names {
            let Some(new) = pattern.new_name(old) else { continue };
            if pattern.is_ambiguous(old) {
                return refused(format!(
                    "{old:?} matches {:?} in more than one way, so its new name is not certain; write more of the name, or \
                     fewer *",
                    pattern.old
                ));
            }
            if let Some(other) = origins.insert(new.clone(), old) {
                return refused(format!("{other:?} and {old:?} would both become {new:?}"));
            }
            renames.insert(old.clone(), new);
        }
        if renames.is_empty() {
            return Err(Error::NoMatch(format!("mv: no tensor matches {:?}", pattern.old)));
        }
        renames.retain(|old, new| old != new);
        let mut replaced = BTreeMap::new();
        for new in renames.values().filter(|new| !renames.contains_key(*new)) {
            if txn.contains(new)? {
                let there = info(snapshot, new)?.map(|info| header(&info)).unwrap_or_default();
                replaced.insert(new.clone(), there);
            }
        }
        if let Some((new, there)) = replaced.first_key_value().filter(|_| !existing.force) {
            let old = origins.get(new).map(|old| old.as_str()).unwrap_or_default();
            let (more, they) = match replaced.len() - 1 {
                0 => (String::new(), "it"),
                1 => (", and so does 1 more of the new names".to_owned(), "them"),
                count => (format!(", and so do {count} more of the new names"), "them"),
            };
            let what = format!("{old:?} would become {new:?}, which exists, {there}{more}");
            return refused(format!("{what}; --force replaces {they}"));
        }
        let mut attributes = Vec::new();
        for ((scope, key), value) in snapshot.all_attributes() {
            // Those of a tensor go with it.
            let new =
                pattern.new_name(scope).filter(|new| new != scope && names.binary_search(scope).is_err());
            let Some(new) = new else { continue };
            let there = snapshot.attributes(&new).remove(key).filter(|there| there != value);
            if let Some(there) = there.filter(|_| !existing.force) {
                return refused(format!(
                    "the attribute {key:?} of {scope:?} would replace that of {new:?}, {there:?}; --force replaces it"
                ));
            }
            attributes.push(((scope.clone(), key.clone(), value.clone()), new));
        }
        Ok(Plan { renames, attributes, replaced })
    }

    /// Makes the changes. Returns `None` if there are none.
    fn apply(self, txn: &mut Transaction<'_>) -> Result<Option<Change>> {
        let Some((first_old, first_new)) = self.renames.first_key_value() else { return Ok(None) };
        // A new name may be the old name of another tensor, which is moved out of the way.
        let new_names: BTreeSet<&String> = self.renames.values().collect();
        let (mut moved, mut number) = (BTreeMap::new(), 0u64);
        for &old in new_names.iter().filter(|new| self.renames.contains_key(**new)) {
            let mut free = format!("~{number}");
            while new_names.contains(&free) || txn.contains(&free)? {
                number += 1;
                free = format!("~{number}");
            }
            txn.rename(old, &free)?;
            moved.insert(old.as_str(), free);
        }
        for (old, new) in &self.renames {
            txn.rename(moved.get(old.as_str()).unwrap_or(old), new)?;
        }
        for ((scope, key, _), _) in &self.attributes {
            txn.remove_attribute(scope, key)?;
        }
        for ((_, key, value), new) in &self.attributes {
            txn.set_attribute(new, key, value)?;
        }
        let line = |(old, new): (&String, &String)| {
            let replacing = self.replaced.get(new).map(|there| format!(", replacing {there}"));
            format!("{} to {}{}", quoted(old), quoted(new), replacing.unwrap_or_default())
        };
        let lines: Vec<String> = self.renames.iter().map(line).collect();
        let what = match self.renames.len() {
            1 => line((first_old, first_new)),
            count => {
                let tensors = counted(count as u64, "tensor");
                format!("{tensors}, such as {} to {}", quoted(first_old), quoted(first_new))
            }
        };
        let attributes = match self.attributes.len() as u64 {
            0 => String::new(),
            1 => ", with 1 attribute of a prefix".to_owned(),
            count => format!(", with {count} attributes of prefixes"),
        };
        let replaced: BTreeSet<String> = self.replaced.into_keys().collect();
        let what = format!("{what}{attributes}");
        Ok(Some(Change { does: "rename", did: "renamed", what, lines, replaced }))
    }
}
