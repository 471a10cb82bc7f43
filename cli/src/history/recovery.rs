//! How to get back what a change removed or replaced.

use std::collections::BTreeSet;
use std::path::Path;

use stridemap::{ErrorKind, Result as LibraryResult, Snapshot, Store, TensorInfo};

use super::Before;
use crate::change::freed::Freed;
use crate::change::plan::info;
use crate::error::Result;
use crate::names::quoted;
use crate::ui::{counted, message};

/// The maximum number of tagged generations in which tensors are looked for.
const MAX_GENERATIONS: usize = 100;

/// Tensors that a change removes or replaces.
#[derive(Default)]
pub(crate) struct Replaced {
    infos: Vec<TensorInfo>,
    /// How many bytes no tensor refers to afterwards.
    lost_bytes: u64,
}

impl Replaced {
    /// Returns the tensors with these names. The snapshot is from before the change.
    pub(crate) fn of(names: &BTreeSet<String>, snapshot: &Snapshot) -> Result<Self> {
        let infos = names.iter().filter_map(|name| info(snapshot, name).transpose());
        let infos: Vec<TensorInfo> = infos.collect::<LibraryResult<_>>()?;
        let lost_bytes = if infos.is_empty() { 0 } else { Freed::of(names, snapshot)?.lost_bytes() };
        Ok(Replaced { infos, lost_bytes })
    }

    /// Says how to get the tensors back, or that it is not possible. The change has been made, so it does not fail any
    /// more.
    pub(crate) fn report(&self, store: &Store, path: &Path) {
        match self.advice(store, path) {
            Ok(advice) => advice.iter().for_each(|advice| message(&format!("note: {advice}"))),
            Err(e) => {
                message(&format!("note: it could not be found out whether a tag keeps the old state: {e}"))
            }
        }
    }

    /// Returns what a dry run says: how the tensors could be brought back, or that it would not be possible. `before` is the
    /// tag that the change would make.
    pub(crate) fn advice_before(
        &self,
        before: &Before,
        store: &Store,
        path: &Path,
    ) -> Result<Option<String>> {
        match &before.name {
            Some(tag) if !self.infos.is_empty() => {
                Ok(Some(format!("{} would keep {}", quoted(tag), self.pronoun())))
            }
            _ => self.advice(store, path),
        }
    }

    fn pronoun(&self) -> &'static str {
        if self.infos.len() == 1 { "it" } else { "them" }
    }

    /// Returns how to get the tensors back, or that it is not possible. `None` if nothing is lost.
    fn advice(&self, store: &Store, path: &Path) -> Result<Option<String>> {
        if self.infos.is_empty() {
            return Ok(None);
        }
        let (it, path) = (self.pronoun(), path.display());
        Ok(match self.find(store)? {
            Some(Keeper { tag, kept, others }) => {
                let (prefix, name) = (self.common_prefix(), quoted(&tag));
                let prefix = if prefix.is_empty() { String::new() } else { format!(" {}", quoted(prefix)) };
                let which = match kept == self.infos.len() {
                    true => format!("{name} keeps {it}"),
                    false => format!("{name} keeps {kept} of {}", counted(self.infos.len() as u64, "tensor")),
                };
                let others = if others { "; -n shows what else that changes" } else { "" };
                Some(format!("{which}; to get {it} back: stridemap restore {path} {name}{prefix}{others}"))
            }
            None if self.lost_bytes == 0 => None,
            None => Some(format!(
                "no tag keeps {it}, so {it} cannot be brought back; --tag NAME tags the state before a change"
            )),
        })
    }

    /// Finds the tag that keeps most of the tensors, the newest of several.
    fn find(&self, store: &Store) -> Result<Option<Keeper>> {
        let mut best: Option<Keeper> = None;
        for tagged in tagged(store)? {
            let (tag, snapshot) = tagged?;
            let mut kept = 0;
            for old in &self.infos {
                kept += usize::from(info(&snapshot, &old.name)?.is_some_and(|info| is_same(&info, old)));
            }
            if kept > best.as_ref().map_or(0, |best| best.kept) {
                let others = self.changes_others(&snapshot, &store.snapshot())?;
                best = Some(Keeper { tag, kept, others });
            }
            if kept == self.infos.len() {
                break;
            }
        }
        Ok(best)
    }

    /// Returns whether restoring the common prefix would change other tensors, too.
    fn changes_others(&self, tagged: &Snapshot, now: &Snapshot) -> LibraryResult<bool> {
        let prefix = self.common_prefix();
        let is_other = |name: &str| !self.infos.iter().any(|info| info.name == name);
        let differ = |from: &Snapshot, to: &Snapshot| -> LibraryResult<bool> {
            for there in from.iter_tensors(prefix)? {
                let there = there?;
                let is_equal = info(to, &there.name)?.is_some_and(|info| is_same(&info, &there));
                if is_other(&there.name) && !is_equal {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        Ok(differ(tagged, now)? || differ(now, tagged)?)
    }

    /// Returns the longest text with which all the names begin.
    fn common_prefix(&self) -> &str {
        let mut names = self.infos.iter().map(|info| info.name.as_str());
        let first = names.next().unwrap_or_default();
        names.fold(first, |prefix, name| {
            let common = prefix.char_indices().zip(name.chars()).take_while(|((_, a), b)| a == b);
            let end = common.last().map_or(0, |((at, c), _)| at + c.len_utf8());
            prefix.get(..end).unwrap_or_default()
        })
    }
}

/// Returns those of these storages that a tag keeps.
pub(crate) fn kept_by_tags(store: &Store, mut ids: BTreeSet<u64>) -> Result<BTreeSet<u64>> {
    let mut kept = BTreeSet::new();
    for tagged in tagged(store)? {
        if ids.is_empty() {
            break;
        }
        for storage in tagged?.1.storages() {
            kept.extend(ids.take(&storage?.id));
        }
    }
    Ok(kept)
}

/// Returns an iterator over the last tagged generations, the newest first, each with one of its tags.
fn tagged(store: &Store) -> LibraryResult<impl Iterator<Item = LibraryResult<(String, Snapshot)>> + '_> {
    let mut tags = store.tags()?;
    tags.reverse();
    tags.dedup_by_key(|tag| tag.generation);
    Ok(tags.into_iter().take(MAX_GENERATIONS).filter_map(|tag| match store.at(tag.generation) {
        // Another process has removed the tag since.
        Err(e) if e.kind() == ErrorKind::Conflict => None,
        snapshot => Some(snapshot.map(|snapshot| (tag.name, snapshot))),
    }))
}

/// A tag that keeps some of the tensors.
struct Keeper {
    tag: String,
    kept: usize,
    /// Whether restoring them changes other tensors, too.
    others: bool,
}

fn is_same(a: &TensorInfo, b: &TensorInfo) -> bool {
    a.storage_id == b.storage_id && a.header == b.header
}
