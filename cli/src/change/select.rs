//! Which tensors of files are imported, and under which names.

use std::collections::BTreeSet;

use stridemap_interop::{FileFormat, ForeignFile, Skipped};

use super::rename::Renames;
use crate::error::{Error, Result};
use crate::names::{Pattern, pattern_in, quoted};
use crate::ui::warn;

#[derive(clap::Args)]
pub(crate) struct Selection {
    /// Import the tensor or value OLD as NEW; =NEW is for a tensor whose name is empty. If OLD has a *, it renames all that
    /// match, and each * in NEW stands for what the one in OLD matched: 'module.*=*'. Repeatable
    #[arg(long, value_name = "OLD=NEW")]
    rename: Vec<String>,
    /// Import only the tensor or value NAME, what is below it (NAME.*), or what matches a glob or a prefix; nothing else
    /// has to be readable. Repeatable
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Leave out tensors or values, by name, by glob ('*.num_batches') or by prefix ('head.'). Repeatable
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// Leave out what cannot be read, and print the names; without this, a file with such tensors or values is refused
    #[arg(long)]
    skip_unreadable: bool,
}

impl Selection {
    /// Renames the tensors of the files, and leaves some out. Refuses what cannot be read, or prints its names with
    /// `--skip-unreadable`. The files have been opened with it. Returns what is imported.
    pub(super) fn apply<'a>(&self, files: impl Iterator<Item = &'a mut ForeignFile>) -> Result<Kept> {
        let mut files: Vec<&mut ForeignFile> = files.collect();
        let tensors: BTreeSet<String> =
            files.iter().flat_map(|file| file.tensors()).map(|tensor| tensor.name).collect();
        let values = files.iter().flat_map(|file| {
            file.attributes().keys().chain(file.skipped().iter().map(|skipped| &skipped.name))
        });
        let values: BTreeSet<String> = values.cloned().collect();
        let all = &tensors | &values;
        let parts = self.parts(&all)?;
        let mut kept = Kept { skipped: self.skipped(&all)?, parts, renames: Renames::default() };
        for file in &files {
            for unreadable in file.skipped() {
                if kept.contains(&unreadable.name) {
                    report_unreadable(unreadable, self.skip_unreadable)?;
                }
            }
        }
        // The keys of metadata are apart from the names of tensors; the values of a .pt file are not.
        let pt = files.iter().filter(|file| file.format() == FileFormat::PyTorch);
        let pt_values = pt.flat_map(|file| file.attributes().keys());
        let named = tensors.iter().chain(pt_values).cloned().collect();
        kept.renames = Renames::of(&self.rename, &named, |name| kept.contains(name))?;
        let is_kept = |name: &str| kept.contains(name);
        if !tensors.is_empty() && self.only.is_empty() && !tensors.iter().any(|name| is_kept(name)) {
            return Err(Error::Refused("import --skip: every tensor is left out".to_owned()));
        }
        if self.rename.is_empty() && self.only.is_empty() && self.skip.is_empty() {
            return Ok(kept);
        }
        let new_name = |name: &str| is_kept(name).then(|| kept.new_name(name));
        files.iter_mut().try_for_each(|file| file.rename(new_name))?;
        Ok(kept)
    }

    /// Parses `--only`. It is an error if one of the patterns selects nothing.
    fn parts(&self, all: &BTreeSet<String>) -> Result<Vec<Pattern>> {
        let part = |text: &String| {
            let pattern = pattern_in(text, |name| Ok(all.contains(name)))?;
            match all.iter().any(|name| is_part(&pattern, name)) {
                true => Ok(pattern),
                false => Err(Error::NoMatch(format!("import --only: no tensor or value matches {text:?}"))),
            }
        };
        self.only.iter().map(part).collect()
    }

    /// Returns what `--skip` leaves out.
    fn skipped(&self, all: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let mut skipped = BTreeSet::new();
        for text in &self.skip {
            let pattern = pattern_in(text, |name| Ok(all.contains(name)))?;
            let mut matching = all.iter().filter(|name| pattern.matches(name)).peekable();
            if matching.peek().is_none() {
                return Err(Error::NoMatch(format!("import --skip: no tensor or value matches {text:?}")));
            }
            let count = skipped.len();
            skipped.extend(matching.cloned());
            if skipped.len() == count {
                let why = format!("import --skip: {text:?} matches only what is already left out");
                return Err(Error::Refused(why));
            }
        }
        Ok(skipped)
    }
}

/// Refuses what cannot be read, or prints its name if it is left out.
pub(super) fn report_unreadable(unreadable: &Skipped, is_left_out: bool) -> Result<()> {
    if !is_left_out {
        return Err(Error::Refused(format!("{}; --skip-unreadable leaves it out", unreadable.reason)));
    }
    warn(&format!("left out {}: {}", quoted(&unreadable.name), unreadable.reason));
    Ok(())
}

/// What is imported, by the names in the files.
pub(super) struct Kept {
    /// What `--only` selects. Empty for everything.
    parts: Vec<Pattern>,
    skipped: BTreeSet<String>,
    renames: Renames,
}

impl Kept {
    pub(super) fn contains(&self, name: &str) -> bool {
        let is_selected = self.parts.is_empty() || self.parts.iter().any(|pattern| is_part(pattern, name));
        is_selected && !self.skipped.contains(name)
    }

    /// Returns the name in the store of a tensor or value of a file.
    pub(super) fn new_name(&self, name: &str) -> String {
        self.renames.new_name(name)
    }
}

fn is_part(pattern: &Pattern, name: &str) -> bool {
    let is_below = || name.strip_prefix(&pattern.text).is_some_and(|rest| rest.starts_with('.'));
    pattern.matches(name) || pattern.is_name() && is_below()
}
