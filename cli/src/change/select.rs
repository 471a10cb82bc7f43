//! Which tensors of files are imported, and under which names.

use std::collections::{BTreeMap, BTreeSet};

use stridemap::ErrorKind;
use stridemap_interop::{ForeignFile, ForeignOptions};

use crate::error::{Error, Result};
use crate::names::{name_in, pattern_in, quoted};
use crate::ui::warn;

#[derive(clap::Args)]
pub(crate) struct Selection {
    /// Import the tensor OLD as NEW; =NEW is for a tensor whose name is empty. Repeatable
    #[arg(long, value_name = "OLD=NEW")]
    rename: Vec<String>,
    /// Leave out tensors, by name or by glob ('*.num_batches'). Repeatable
    #[arg(long, value_name = "GLOB")]
    skip: Vec<String>,
    /// Leave out tensors that cannot be read, and print their names; without this, a file with such tensors is refused
    #[arg(long)]
    skip_unreadable: bool,
}

impl Selection {
    /// Opens a file. With `--skip-unreadable`, leaves out tensors that cannot be read, and prints their names.
    pub(super) fn open(
        &self,
        options: ForeignOptions,
        open: impl Fn(ForeignOptions) -> stridemap::Result<ForeignFile>,
    ) -> Result<ForeignFile> {
        let skipping = options.skip_unreadable(true);
        if self.skip_unreadable {
            let file = open(skipping)?;
            for skipped in file.skipped() {
                warn(&format!("left out {}: {}", quoted(&skipped.name), skipped.reason));
            }
            return Ok(file);
        }
        open(options).map_err(|e| match e.kind() {
            ErrorKind::BadFile if open(skipping).is_ok() => {
                Error::Refused(format!("{e}; --skip-unreadable leaves it out"))
            }
            _ => e.into(),
        })
    }

    /// Renames the tensors of the files, and leaves some out.
    pub(super) fn apply<'a>(&self, files: impl Iterator<Item = &'a mut ForeignFile>) -> Result<()> {
        if self.rename.is_empty() && self.skip.is_empty() {
            return Ok(());
        }
        let mut files: Vec<&mut ForeignFile> = files.collect();
        let names: BTreeSet<String> =
            files.iter().flat_map(|file| file.tensors()).map(|tensor| tensor.name).collect();
        let refused = |why| Err(Error::Refused(why));
        let mut renames = BTreeMap::new();
        for text in &self.rename {
            let (old, new) = parse_rename(text, &names)?;
            if renames.insert(old.clone(), new).is_some() {
                return refused(format!("import --rename: {old:?} is renamed twice"));
            }
        }
        let mut skipped = BTreeSet::new();
        for text in &self.skip {
            let pattern = pattern_in(text, |name| Ok(names.contains(name)))?;
            let is_matching = |name: &&String| match pattern.is_glob() {
                true => pattern.matches(name),
                false => **name == pattern.text,
            };
            let mut matching = names.iter().filter(is_matching).peekable();
            if matching.peek().is_none() {
                return Err(Error::NoMatch(format!("import --skip: no tensor matches {text:?}")));
            }
            let count = skipped.len();
            skipped.extend(matching.map(String::as_str));
            if skipped.len() == count {
                return refused(format!("import --skip: {text:?} matches only what is already left out"));
            }
        }
        if !skipped.is_empty() && skipped.len() == names.len() {
            return refused("import --skip: every tensor is left out".to_owned());
        }
        if let Some(old) = renames.keys().find(|old| skipped.contains(old.as_str())) {
            return refused(format!("import: {old:?} is both renamed and left out by --skip"));
        }
        let new_name = |name: &str| {
            let kept = || renames.get(name).cloned().unwrap_or_else(|| name.to_owned());
            (!skipped.contains(name)).then(kept)
        };
        files.iter_mut().try_for_each(|file| Ok(file.rename(new_name)?))
    }
}

/// Splits OLD=NEW after the name of a tensor, because a name may contain "=".
fn parse_rename(text: &str, names: &BTreeSet<String>) -> Result<(String, String)> {
    let split = |(at, _)| {
        let old = name_in(&text[..at], |name| Ok(names.contains(name)))?;
        Ok((old, text[at + 1..].to_owned()))
    };
    let mut splits: Vec<(String, String)> = text.match_indices('=').map(split).collect::<Result<_>>()?;
    if splits.is_empty() {
        return Err(Error::Refused(format!("import --rename {text:?}: write OLD=NEW")));
    }
    match splits.iter().position(|(old, _)| names.contains(old)) {
        Some(at) => Ok(splits.swap_remove(at)),
        None => Err(Error::Refused(format!("import --rename: no tensor is named {:?}", splits[0].0))),
    }
}
