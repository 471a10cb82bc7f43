//! How to get back what a change removed or replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use stridemap::{NameChanges, Result as LibraryResult, Snapshot, Store, TensorInfo};

use super::Before;
use super::freed::Freed;
use crate::at::still_kept;
use crate::by_storage::by_storage;
use crate::error::Result;
use crate::names::{argument, command_line, quoted, shell_word};
use crate::plan::info;
use crate::ui::{counted, message};

/// The maximum number of tagged generations in which tensors are looked for.
const MAX_GENERATIONS: usize = 100;

/// The maximum number of tagged generations in which a tensor is looked for that an error is about.
const MAX_HINT_GENERATIONS: usize = 20;

/// The maximum number of tensors that are looked for, counted once for each generation. After as many, no further
/// generation is examined.
const MAX_LOOKUPS: usize = 200_000;

/// The maximum number of tensors that a refusal names.
const MAX_SHOWN: usize = 3;

/// Tensors that a change removes or replaces.
#[derive(Default)]
pub(crate) struct Replaced {
    infos: BTreeMap<String, TensorInfo>,
    /// The attributes of these tensors.
    attributes: BTreeMap<(String, String), String>,
    /// How many bytes no tensor refers to afterwards.
    lost_bytes: u64,
}

impl Replaced {
    /// Returns the tensors with these names. The snapshot is from before the change.
    pub(crate) fn of(names: &BTreeSet<String>, snapshot: &Snapshot) -> Result<Self> {
        Self::with(names, snapshot, &Freed::of(names, snapshot)?)
    }

    /// Like [`of`](Self::of), if it is already known what removing them frees.
    pub(crate) fn with(names: &BTreeSet<String>, snapshot: &Snapshot, freed: &Freed) -> Result<Self> {
        let infos = names.iter().filter_map(|name| info(snapshot, name).transpose());
        let infos = infos.map(|info| info.map(|info| (info.name.clone(), info)));
        let infos: BTreeMap<String, TensorInfo> = infos.collect::<LibraryResult<_>>()?;
        let attributes = snapshot.all_attributes().iter().filter(|((scope, _), _)| infos.contains_key(scope));
        let attributes = attributes.map(|(at, value)| (at.clone(), value.clone())).collect();
        Ok(Replaced { infos, attributes, lost_bytes: freed.lost_bytes() })
    }

    /// Says how to get the tensors back, or that it is not possible. The change has been made, so it does not fail any more.
    pub(crate) fn report(&self, store: &Store, path: &Path) {
        let text = self.advice(store, path).unwrap_or_else(|e| {
            Some(format!("it could not be found out whether a tag keeps {}: {e}", self.pronoun()))
        });
        text.iter().for_each(|text| message(&format!("note: {text}")));
    }

    /// Prints for a dry run how the tensors could be brought back, or that it would not be possible. `before` is the tag
    /// that the change would make.
    pub(crate) fn print_advice(
        &self,
        before: &Before,
        store: &Store,
        path: &Path,
        out: &mut impl Write,
    ) -> Result<()> {
        let advice = match &before.tag {
            Some(tag) if !self.infos.is_empty() => {
                Some(format!("{} would keep {}", shell_word(tag), self.pronoun()))
            }
            _ => self.advice(store, path)?,
        };
        advice.iter().try_for_each(|advice| Ok(writeln!(out, "{advice}")?))
    }

    /// Returns why the change should not be made without `--tag`: elements of some of the tensors would be lost, because no
    /// tag keeps them. The snapshot is from before the change.
    pub(crate) fn refusal(&self, store: &Store, snapshot: &Snapshot) -> Result<Option<String>> {
        if self.lost_bytes == 0 {
            return Ok(None);
        }
        let (tagged, is_complete) = self.examined(tagged(store)?);
        let mut left = Replaced { infos: self.infos.clone(), ..Replaced::default() };
        for (_, generation) in &tagged {
            let Some(kept) = still_kept(store, *generation)? else { continue };
            left.by_name(&kept)?.values().for_each(|name| drop(left.infos.remove(name)));
            left.with_elements_in(&kept)?.iter().for_each(|name| drop(left.infos.remove(name)));
            if left.infos.is_empty() {
                return Ok(None);
            }
        }
        let names: BTreeSet<String> = left.infos.keys().cloned().collect();
        if Freed::of(&names, snapshot)?.lost_bytes() == 0 {
            return Ok(None);
        }
        let shown: Vec<_> = names.iter().take(MAX_SHOWN).map(|name| quoted(name)).collect();
        let more = match names.len().saturating_sub(MAX_SHOWN) {
            0 => String::new(),
            more => format!(" and {}", counted(more as u64, "more tensor")),
        };
        let keeps = if is_complete { "no tag keeps" } else { "none of the last tags keeps" };
        Ok(Some(format!(
            "{keeps} the present state of {}{more}; --tag NAME tags it in the same commit, --force lets it be lost",
            shown.join(", ")
        )))
    }

    /// Leaves out the tensors that a generation has under any name with a prefix, which a restore of this prefix brings back.
    pub(crate) fn unless_in(mut self, restored: &Snapshot, prefix: &str) -> LibraryResult<Self> {
        for there in restored.iter_tensors(prefix)? {
            let there = there?;
            self.infos.retain(|_, old| !is_same(&there, old));
        }
        Ok(self)
    }

    /// Returns the tagged generations in which the tensors are looked for, and whether these are all.
    fn examined(&self, mut tagged: Vec<(String, u64)>) -> (Vec<(String, u64)>, bool) {
        let most = (MAX_LOOKUPS / self.infos.len().max(1)).clamp(1, MAX_GENERATIONS);
        let is_complete = tagged.len() <= most;
        tagged.truncate(most);
        (tagged, is_complete)
    }

    fn pronoun(&self) -> &'static str {
        if self.infos.len() == 1 { "it" } else { "them" }
    }

    /// Returns how to get the tensors back, or that it is not possible; `None` if nothing is lost.
    fn advice(&self, store: &Store, path: &Path) -> Result<Option<String>> {
        if self.infos.is_empty() {
            return Ok(None);
        }
        let (examined, is_complete) = self.examined(tagged(store)?);
        if let Some(keeper) = self.find(store, &examined, |snapshot| self.by_name(snapshot))? {
            return Ok(Some(self.kept(&keeper, path)));
        }
        if self.lost_bytes == 0 {
            return Ok(None);
        }
        if let Some(keeper) = self.find(store, &examined, |snapshot| self.by_storage(snapshot))? {
            return Ok(Some(self.kept(&keeper, path)));
        }
        let (it, they) = (self.pronoun(), if self.infos.len() == 1 { "it" } else { "they" });
        let lost = match is_complete {
            true => format!("no tag keeps {it}, so {they} cannot be brought back"),
            false => format!("none of the last tags keeps {it}"),
        };
        Ok(Some(format!("{lost}; --tag NAME tags the state before a change")))
    }

    /// Says how to get back what a tag keeps.
    fn kept(&self, keeper: &Keeper, path: &Path) -> String {
        let (it, tag, count) = (self.pronoun(), shell_word(&keeper.tag), keeper.names.len());
        let is_all = count == self.infos.len();
        let those = match (is_all, count) {
            (true, _) => it,
            (false, 1) => "that one",
            (false, _) => "those",
        };
        let renamed = keeper.names.iter().find(|(there, name)| there != name);
        let which = match renamed {
            Some((there, _)) if self.infos.len() == 1 => {
                format!("no tag keeps it under this name, but {tag} has it as {}", quoted(there))
            }
            Some((there, name)) => format!(
                "no tag keeps them under these names, but {tag} has {count} of {}, such as {} as {}",
                counted(self.infos.len() as u64, "tensor"),
                quoted(name),
                quoted(there)
            ),
            None if is_all => format!("{tag} keeps {it}"),
            None => format!("{tag} keeps {count} of {}", counted(self.infos.len() as u64, "tensor")),
        };
        let (path, prefix) = (path.to_string_lossy(), argument(keeper.prefix()));
        let mut arguments = vec![&*path, &*keeper.tag];
        arguments.extend((!prefix.is_empty()).then_some(&*prefix));
        let others = if keeper.changes_others { "; -n shows what else that changes" } else { "" };
        let keep = if keeper.loses_others { " --tag NAME, which keeps the present state, too" } else { "" };
        format!("{which}; to get {those} back: {}{keep}{others}", command_line("restore", &arguments))
    }

    /// Finds the tag that keeps most of the tensors, the newest of several. `names_in` returns the names of those that a
    /// generation has, as in [`Keeper::names`].
    fn find(
        &self,
        store: &Store,
        tagged: &[(String, u64)],
        names_in: impl Fn(&Snapshot) -> LibraryResult<BTreeMap<String, String>>,
    ) -> Result<Option<Keeper>> {
        let mut best: Option<(Keeper, Snapshot)> = None;
        for (tag, generation) in tagged {
            let Some(snapshot) = still_kept(store, *generation)? else { continue };
            let names = names_in(&snapshot)?;
            let is_complete = names.len() == self.infos.len();
            if names.len() > best.as_ref().map_or(0, |(best, _)| best.names.len()) {
                best = Some((
                    Keeper { tag: tag.clone(), names, changes_others: false, loses_others: false },
                    snapshot,
                ));
            }
            if is_complete {
                break;
            }
        }
        let Some((mut keeper, snapshot)) = best else { return Ok(None) };
        let now = store.snapshot();
        keeper.changes_others = self.changes_others(&keeper, &snapshot, &now)?;
        let there: BTreeSet<String> = keeper.names.keys().cloned().collect();
        let lost = Replaced::of(&there, &now)?.unless_in(&snapshot, keeper.prefix())?;
        keeper.loses_others = lost.refusal(store, &now)?.is_some();
        Ok(Some(keeper))
    }

    /// Returns those of the tensors that a generation has under their names.
    fn by_name(&self, tagged: &Snapshot) -> LibraryResult<BTreeMap<String, String>> {
        let mut names = BTreeMap::new();
        for (name, old) in &self.infos {
            if info(tagged, name)?.is_some_and(|info| is_same(&info, old)) {
                names.insert(name.clone(), name.clone());
            }
        }
        Ok(names)
    }

    /// Whether a tensor of this name is one of them.
    pub(super) fn has(&self, name: &str) -> bool {
        self.infos.contains_key(name)
    }

    /// Returns the tensors by the id of their storage.
    pub(super) fn on_storages(&self) -> BTreeMap<u64, Vec<&TensorInfo>> {
        let mut on: BTreeMap<u64, Vec<&TensorInfo>> = BTreeMap::new();
        self.infos.values().for_each(|info| on.entry(info.storage_id).or_default().push(info));
        on
    }

    /// Returns those of the tensors that a generation has under any names.
    fn by_storage(&self, tagged: &Snapshot) -> LibraryResult<BTreeMap<String, String>> {
        let mut wanted = self.on_storages();
        let mut names = BTreeMap::new();
        let mut is_there = false;
        for storage in tagged.storages() {
            is_there |= wanted.contains_key(&storage?.id);
        }
        if !is_there {
            return Ok(names);
        }
        for there in tagged.iter_tensors("")? {
            let there = there?;
            let Some(olds) = wanted.get_mut(&there.storage_id) else { continue };
            if let Some(index) = olds.iter().position(|old| is_same(&there, old)) {
                names.insert(there.name, olds.swap_remove(index).name.clone());
            }
        }
        Ok(names)
    }

    /// Returns the names of those of the tensors whose elements tensors of a generation have, too.
    fn with_elements_in(&self, tagged: &Snapshot) -> Result<Vec<String>> {
        let wanted = self.on_storages();
        let mut storages = BTreeMap::new();
        for storage in tagged.storages() {
            let storage = storage?;
            storages.extend(wanted.contains_key(&storage.id).then_some((storage.id, storage)));
        }
        if storages.is_empty() {
            return Ok(Vec::new());
        }
        let is_on_these = |info: &LibraryResult<TensorInfo>| {
            info.as_ref().map_or(true, |info| storages.contains_key(&info.storage_id))
        };
        let by_storage = by_storage(tagged.iter_tensors("")?.filter(is_on_these))?;
        let mut found = Vec::new();
        for (id, infos) in wanted {
            let (Some(storage), Some(there)) = (storages.get(&id), by_storage.get(&id)) else { continue };
            let has = |infos: &[&TensorInfo]| {
                let with: Vec<TensorInfo> = there.iter().chain(infos.iter().copied()).cloned().collect();
                let bytes = |infos: &[TensorInfo]| storage.compacted_bytes(infos).ok();
                bytes(there).is_some_and(|there| bytes(&with) == Some(there))
            };
            if has(&infos) {
                found.extend(infos.iter().map(|info| info.name.clone()));
            } else if infos.len().saturating_mul(there.len()) <= MAX_LOOKUPS {
                let those = infos.iter().filter(|info| has(&[info]));
                found.extend(those.map(|info| info.name.clone()));
            }
        }
        Ok(found)
    }

    /// Returns whether restoring what a tag keeps also changes anything that was different before the change.
    fn changes_others(&self, keeper: &Keeper, tagged: &Snapshot, now: &Snapshot) -> LibraryResult<bool> {
        let prefix = keeper.prefix();
        let NameChanges { added, changed, removed, .. } = tagged.changes_since(now)?;
        let is_kept = |name: &String| keeper.names.contains_key(name);
        // A kept name that the change did not free has another tensor now.
        let is_other = |name: &String| !(is_kept(name) && self.infos.contains_key(name));
        if added.iter().any(|name| name.starts_with(prefix) && !is_kept(name))
            || changed.iter().any(|name| name.starts_with(prefix) && is_other(name))
            || removed.iter().any(|name| name.starts_with(prefix))
        {
            return Ok(true);
        }
        let (after, before) = (tagged.all_attributes(), now.all_attributes());
        let is_as_before = |(scope, key): &(String, String)| {
            let old = keeper.names.get(scope).map(|name| (name.clone(), key.clone()));
            old.is_some_and(|old| self.attributes.get(&old) == after.get(&(scope.clone(), key.clone())))
        };
        let mut keys = after.keys().chain(before.keys()).filter(|(scope, _)| scope.starts_with(prefix));
        Ok(keys.any(|at| after.get(at) != before.get(at) && !is_as_before(at)))
    }
}

/// Returns those of these storages that one of the last tagged generations has.
pub(crate) fn kept_by_tags(store: &Store, mut ids: BTreeSet<u64>) -> Result<BTreeSet<u64>> {
    let mut kept = BTreeSet::new();
    for (_, generation) in tagged(store)?.into_iter().take(MAX_GENERATIONS) {
        if ids.is_empty() {
            break;
        }
        let Some(snapshot) = still_kept(store, generation)? else { continue };
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

/// Returns the newest tag whose generation has something, of the last tags.
pub(crate) fn newest_tag_with(store: &Store, has_it: impl Fn(&Snapshot) -> bool) -> Option<String> {
    let tagged = tagged(store).ok()?.into_iter().take(MAX_HINT_GENERATIONS);
    let mut tagged = tagged.filter_map(|(tag, generation)| Some((tag, still_kept(store, generation).ok()??)));
    tagged.find(|(_, snapshot)| has_it(snapshot)).map(|(tag, _)| tag)
}

/// A tag that keeps some of the tensors.
struct Keeper {
    tag: String,
    /// The names of the tensors in the tagged generation, each with the name that the tensor had before the change.
    names: BTreeMap<String, String>,
    /// Whether restoring them changes anything else, too.
    changes_others: bool,
    /// Whether restoring them loses what no tag keeps, so that it is refused without a tag.
    loses_others: bool,
}

impl Keeper {
    /// Returns the longest text with which all names in the tagged generation begin.
    fn prefix(&self) -> &str {
        let mut names = self.names.keys().map(String::as_str);
        let first = names.next().unwrap_or_default();
        names.fold(first, |prefix, name| {
            let common = prefix.char_indices().zip(name.chars()).take_while(|((_, a), b)| a == b);
            let end = common.last().map_or(0, |((at, c), _)| at + c.len_utf8());
            prefix.get(..end).unwrap_or_default()
        })
    }
}

fn is_same(a: &TensorInfo, b: &TensorInfo) -> bool {
    a.storage_id == b.storage_id && a.header == b.header
}
