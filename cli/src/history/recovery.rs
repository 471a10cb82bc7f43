//! How to get back what a change removed or replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stridemap::{ErrorKind, Result as LibraryResult, Snapshot, Store, TensorInfo};

use super::Before;
use crate::change::freed::Freed;
use crate::change::plan::info;
use crate::error::Result;
use crate::names::shell_word;
use crate::ui::{counted, message};

/// The maximum number of tagged generations in which tensors are looked for.
const MAX_GENERATIONS: usize = 100;

/// The maximum number of tensors that are looked for, counted once for each generation. After as many, no further
/// generation is examined.
const MAX_LOOKUPS: usize = 200_000;

/// Tensors that a change removes or replaces.
#[derive(Default)]
pub(crate) struct Replaced {
    infos: BTreeMap<String, TensorInfo>,
    /// How many bytes no tensor refers to afterwards.
    lost_bytes: u64,
}

impl Replaced {
    /// Returns the tensors with these names. The snapshot is from before the change.
    pub(crate) fn of(names: &BTreeSet<String>, snapshot: &Snapshot) -> Result<Self> {
        let infos = names.iter().filter_map(|name| info(snapshot, name).transpose());
        let infos = infos.map(|info| info.map(|info| (info.name.clone(), info)));
        let infos: BTreeMap<String, TensorInfo> = infos.collect::<LibraryResult<_>>()?;
        let lost_bytes = if infos.is_empty() { 0 } else { Freed::of(names, snapshot)?.lost_bytes() };
        Ok(Replaced { infos, lost_bytes })
    }

    /// Says how to get the tensors back, or that it is not possible. Returns whether a tag keeps some. The change has been
    /// made, so it does not fail any more.
    pub(crate) fn report(&self, store: &Store, path: &Path) -> bool {
        let advice = self.advice(store, path).unwrap_or_else(|e| Advice {
            text: Some(format!("it could not be found out whether a tag keeps {}: {e}", self.pronoun())),
            is_kept: false,
        });
        advice.text.iter().for_each(|text| message(&format!("note: {text}")));
        advice.is_kept
    }

    /// Returns what a dry run says: how the tensors could be brought back, or that it would not be possible. `before` is the
    /// tag that the change would make.
    pub(crate) fn advice_before(
        &self,
        before: &Before,
        store: &Store,
        path: &Path,
    ) -> Result<Option<String>> {
        match &before.tag {
            Some(tag) if !self.infos.is_empty() => {
                Ok(Some(format!("{} would keep {}", shell_word(tag), self.pronoun())))
            }
            _ => Ok(self.advice(store, path)?.text),
        }
    }

    fn pronoun(&self) -> &'static str {
        if self.infos.len() == 1 { "it" } else { "them" }
    }

    fn advice(&self, store: &Store, path: &Path) -> Result<Advice> {
        if self.infos.is_empty() {
            return Ok(Advice { text: None, is_kept: false });
        }
        let (it, path) = (self.pronoun(), path.display());
        let (found, unexamined) = self.find(store)?;
        let they = if self.infos.len() == 1 { "it" } else { "they" };
        let (none, lost) = match unexamined {
            0 => ("no tag", format!(", so {they} cannot be brought back")),
            _ => ("none of the last tags", String::new()),
        };
        let is_kept = found.is_some();
        let text = match found {
            Some(Keeper { tag, kept, others }) => {
                let (prefix, name) = (self.common_prefix(), shell_word(&tag));
                let prefix =
                    if prefix.is_empty() { String::new() } else { format!(" {}", shell_word(prefix)) };
                let which = match kept == self.infos.len() {
                    true => format!("{name} keeps {it}"),
                    false => format!("{name} keeps {kept} of {}", counted(self.infos.len() as u64, "tensor")),
                };
                let others = if others { "; -n shows what else that changes" } else { "" };
                Some(format!("{which}; to get {it} back: stridemap restore {path} {name}{prefix}{others}"))
            }
            None if self.lost_bytes == 0 => None,
            None => Some(format!("{none} keeps {it}{lost}; --tag NAME tags the state before a change")),
        };
        Ok(Advice { text, is_kept })
    }

    /// Finds the tag that keeps most of the tensors, the newest of several. Also returns how many generations were not
    /// examined.
    fn find(&self, store: &Store) -> Result<(Option<Keeper>, usize)> {
        let mut best: Option<Keeper> = None;
        let tagged = tagged(store)?;
        let most = (MAX_LOOKUPS / self.infos.len().max(1)).clamp(1, MAX_GENERATIONS);
        let unexamined = tagged.len().saturating_sub(most);
        for (tag, generation) in tagged.into_iter().take(most) {
            let Some(snapshot) = at(store, generation)? else { continue };
            let mut kept = 0;
            for old in self.infos.values() {
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
        Ok((best, unexamined))
    }

    /// Returns whether restoring the common prefix would change other tensors, too.
    fn changes_others(&self, tagged: &Snapshot, now: &Snapshot) -> LibraryResult<bool> {
        let prefix = self.common_prefix();
        let differ = |from: &Snapshot, to: &Snapshot| -> LibraryResult<bool> {
            for there in from.iter_tensors(prefix)? {
                let there = there?;
                let is_equal = info(to, &there.name)?.is_some_and(|info| is_same(&info, &there));
                if !is_equal && !self.infos.contains_key(&there.name) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        Ok(differ(tagged, now)? || differ(now, tagged)?)
    }

    /// Returns the longest text with which all the names begin.
    fn common_prefix(&self) -> &str {
        let mut names = self.infos.keys().map(String::as_str);
        let first = names.next().unwrap_or_default();
        names.fold(first, |prefix, name| {
            let common = prefix.char_indices().zip(name.chars()).take_while(|((_, a), b)| a == b);
            let end = common.last().map_or(0, |((at, c), _)| at + c.len_utf8());
            prefix.get(..end).unwrap_or_default()
        })
    }
}

/// Returns those of these storages that one of the last tagged generations has.
pub(crate) fn kept_by_tags(store: &Store, mut ids: BTreeSet<u64>) -> Result<BTreeSet<u64>> {
    let mut kept = BTreeSet::new();
    for (_, generation) in tagged(store)?.into_iter().take(MAX_GENERATIONS) {
        if ids.is_empty() {
            break;
        }
        let Some(snapshot) = at(store, generation)? else { continue };
        for storage in snapshot.storages() {
            kept.extend(ids.take(&storage?.id));
        }
    }
    Ok(kept)
}

/// Returns the tagged generations, the newest first, each with one of its tags.
fn tagged(store: &Store) -> LibraryResult<Vec<(String, u64)>> {
    let mut tags: Vec<_> = store.tags()?.into_iter().map(|tag| (tag.name, tag.generation)).collect();
    tags.reverse();
    tags.dedup_by_key(|(_, generation)| *generation);
    Ok(tags)
}

/// Opens a tagged generation. Returns `None` if another process has removed its tags.
pub(super) fn at(store: &Store, generation: u64) -> LibraryResult<Option<Snapshot>> {
    match store.at(generation) {
        Err(e) if e.kind() == ErrorKind::Conflict => Ok(None),
        snapshot => snapshot.map(Some),
    }
}

struct Advice {
    /// How to get the tensors back, or that it is not possible. `None` if nothing is lost.
    text: Option<String>,
    /// Whether a tag keeps some of the tensors.
    is_kept: bool,
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
