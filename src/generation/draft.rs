//! The changes of a transaction, applied to a generation.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use stridemap_format::{self as format, Attributes, StorageRecord, TensorRecord};

use super::attributes::{BoundedAttributes, has_scope};
use super::changes::{Change, Changes, OnExisting, Tagged};
use super::entries::Merged;
use super::history::NewTag;
use super::pinned::{Generation, not_found};
use super::reads::{Read, Reads};
use crate::disk::step;
use crate::error::{Error, ErrorKind, FormatContext, Result};

/// A generation with changes that are not published yet.
#[derive(Debug)]
pub(crate) struct Draft {
    generation: Arc<Generation>,
    pub(crate) changes: Changes,
    /// The tensors that have changed. Made only when it is needed: the changes of a transaction that only saves are in
    /// `changes` already.
    tensors: OnceLock<BTreeMap<String, Option<TensorRecord>>>,
    /// All attributes, if any of them have changed.
    attributes: Option<BoundedAttributes>,
    reads: Mutex<Reads>,
    /// For each name that was renamed or copied from a name of the generation: that name.
    origins: BTreeMap<String, String>,
    /// The tags that are made, or removed.
    tags: BTreeMap<String, Option<NewTag>>,
    /// The generations that headers were restored from.
    restored: Vec<Arc<Generation>>,
}

/// The changes of a transaction on the newest generation.
pub(super) struct Applied {
    /// The record of each name that has changed, or `None` if it was removed.
    pub(super) tensors: BTreeMap<String, Option<TensorRecord>>,
    /// The storages of earlier generations that the new headers refer to, as the transaction saw them.
    pub(super) expected: BTreeMap<u64, StorageRecord>,
    /// All attributes, if any of them have changed.
    pub(super) attributes: Option<Attributes>,
    pub(super) tags: BTreeMap<String, Option<NewTag>>,
    pub(super) message: Option<String>,
    pub(super) restored: Vec<Arc<Generation>>,
}

impl Draft {
    pub(crate) fn new(generation: Arc<Generation>) -> Self {
        Draft {
            generation,
            changes: Changes::default(),
            tensors: OnceLock::new(),
            attributes: None,
            reads: Mutex::default(),
            origins: BTreeMap::new(),
            tags: BTreeMap::new(),
            restored: Vec::new(),
        }
    }

    pub(crate) fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    pub(crate) fn attributes(&self) -> &Attributes {
        self.attributes.as_ref().map_or(&self.generation.manifest().attributes, |changed| &changed.entries)
    }

    /// Returns the generation that has a record of a storage, among that of this draft and those that were restored.
    pub(crate) fn generation_with(&self, id: u64) -> Result<&Arc<Generation>> {
        if self.generation.storage(id)?.is_none() {
            for earlier in self.restored.iter().rev() {
                if earlier.storage(id)?.is_some() {
                    return Ok(earlier);
                }
            }
        }
        Ok(&self.generation)
    }

    fn attributes_mut(&mut self) -> &mut BoundedAttributes {
        let current = || BoundedAttributes::new(self.generation.manifest().attributes.clone());
        self.attributes.get_or_insert_with(current)
    }

    /// Changes the attributes of a scope, unless it has none.
    fn change_scope(
        &mut self,
        scope: &str,
        change: impl FnOnce(&mut BoundedAttributes) -> Result<()>,
    ) -> Result<()> {
        if has_scope(self.attributes(), scope) { change(self.attributes_mut()) } else { Ok(()) }
    }

    fn changed(&self) -> &BTreeMap<String, Option<TensorRecord>> {
        let puts = || self.changes.requested.iter().filter_map(|(change, _)| change.clone().into_put());
        self.tensors.get_or_init(|| puts().collect())
    }

    /// Sets the record of a name, or removes the name.
    fn set(&mut self, name: String, record: Option<TensorRecord>) {
        self.changed();
        if let Some(changed) = self.tensors.get_mut() {
            changed.insert(name, record);
        }
    }

    /// Notes that the name `to` gets the header of `from`.
    fn copy_origin(&mut self, from: &str, to: &str) {
        let origin = match self.origins.get(from) {
            None if self.changed().contains_key(from) => None,
            origin => Some(origin.map_or(from, String::as_str).to_owned()),
        };
        match origin {
            Some(origin) => self.origins.insert(to.to_owned(), origin),
            None => self.origins.remove(to),
        };
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<TensorRecord>> {
        match self.changed().get(name) {
            Some(changed) => Ok(changed.clone()),
            None => self.generation.tensor(name),
        }
    }

    /// Returns the tensors whose name begins with `prefix`, in ascending order of name.
    pub(crate) fn tensors<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<(String, TensorRecord)>> + 'a> {
        let delta = self.changed().range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let delta = delta.map(|(name, record)| (name.clone(), record.clone()));
        let merged = Merged::new(self.generation.tensors(prefix)?, delta);
        Ok(merged.take_while(move |entry| entry.as_ref().map_or(true, |(name, _)| name.starts_with(prefix))))
    }

    pub(crate) fn apply(&mut self, change: Change, on_existing: OnExisting) -> Result<()> {
        match &change {
            Change::Put { action, name, record } => {
                self.check_new(action, name, on_existing)?;
                self.origins.remove(name);
                if let Some(changed) = self.tensors.get_mut() {
                    changed.insert(name.clone(), Some(record.clone()));
                }
            }
            Change::Remove { name } => {
                self.existing("remove", name)?;
                self.origins.remove(name);
                self.set(name.clone(), None);
                self.change_scope(name, |attributes| {
                    attributes.remove_scope(name);
                    Ok(())
                })?;
            }
            Change::Rename { from, to } => {
                let record = self.existing("rename", from)?;
                self.check_new("rename to", to, on_existing)?;
                self.change_scope(from, |attributes| attributes.move_scope(from, to))?;
                self.copy_origin(from, to);
                self.origins.remove(from);
                self.set(to.clone(), Some(record));
                self.set(from.clone(), None);
            }
            Change::Copy { from, to } => {
                let record = self.existing("copy", from)?;
                self.check_new("copy to", to, on_existing)?;
                self.change_scope(from, |attributes| attributes.copy_scope(from, to))?;
                self.copy_origin(from, to);
                self.set(to.clone(), Some(record));
            }
            Change::Relocate(relocation) => {
                // Without this check, the move could undo what another commit did to a name.
                if step!("move-is-up-to-date", relocation.is_up_to_date(&self.generation)?) {
                    relocation.moved().for_each(|(name, record)| self.set(name, record));
                }
            }
            Change::Grow { name, from, to } => {
                if self.existing("append to", name)? != *from {
                    let message = format!(
                        "append to {name:?}: the name now refers to a different tensor; append the rows again"
                    );
                    return Err(Error::new(ErrorKind::Conflict, message));
                }
                self.set(name.clone(), Some(to.clone()));
            }
            Change::Tag { name, of } => {
                self.check_new_tag(name, on_existing)?;
                let earlier = match of {
                    Tagged::Published => None,
                    Tagged::Previous => Some(Arc::clone(&self.generation)),
                    Tagged::Earlier(earlier) => Some(Arc::clone(earlier)),
                };
                let has_message = !matches!(of, Tagged::Previous);
                self.tags.insert(name.clone(), Some(NewTag { has_message, earlier }));
            }
            Change::Untag { name } => {
                if self.tag(name)?.is_none() {
                    let tags = self.generation.tags()?.filter_map(|entry| Some(entry.ok()?.0));
                    return Err(Error::tag_not_found("remove", name, tags));
                }
                self.tags.insert(name.clone(), None);
            }
            Change::Restore { from, prefix } => self.restore(from, prefix)?,
            Change::SetAttribute { scope, key, value } => {
                let at = (scope.clone(), key.clone());
                match value {
                    Some(value) => self.attributes_mut().set(at, value)?,
                    None if self.attributes().contains_key(&at) => self.attributes_mut().remove(&at),
                    None => {}
                }
            }
        }
        self.changes.requested.push((change, on_existing));
        Ok(())
    }

    /// Returns the generation that a tag names, or will name.
    fn tag(&self, name: &str) -> Result<Option<u64>> {
        match self.tags.get(name) {
            Some(changed) => Ok(changed.as_ref().map(|new| match &new.earlier {
                Some(earlier) => earlier.number(),
                None => self.generation.number().saturating_add(1),
            })),
            None => Ok(self.generation.tag(name)?.map(|tag| tag.generation)),
        }
    }

    fn check_new_tag(&self, name: &str, on_existing: OnExisting) -> Result<()> {
        format::check_text("tag", name).refused_to("tag")?;
        let existing = if on_existing == OnExisting::Refuse { self.tag(name)? } else { None };
        existing.map_or(Ok(()), |generation| {
            let message = format!(
                "tag {name:?}: the tag exists, and names generation {generation}; choose a different name, remove that \
                 tag first, or replace it, with Transaction::on_existing"
            );
            Err(Error::new(ErrorKind::NameExists, message))
        })
    }

    /// Restores the names that begin with `prefix` as they are in an earlier generation: their headers and attributes.
    fn restore(&mut self, from: &Arc<Generation>, prefix: &str) -> Result<()> {
        let mut now = self.tensors(prefix)?.collect::<Result<BTreeMap<_, _>>>()?;
        let mut is_empty = true;
        for entry in from.tensors(prefix)? {
            let (name, record) = entry?;
            is_empty = false;
            if now.remove(&name).as_ref() != Some(&record) {
                self.origins.remove(&name);
                self.set(name, Some(record));
            }
        }
        if is_empty && !prefix.is_empty() {
            let message =
                format!("restore {prefix:?} from generation {}: no name begins with this", from.number());
            return Err(Error::new(ErrorKind::NameNotFound, message));
        }
        for (name, _) in now {
            self.origins.remove(&name);
            self.set(name, None);
        }
        let is_within = |scope: &str| scope.starts_with(prefix);
        let (before, after) = (self.attributes(), &from.manifest().attributes);
        let own = |attributes: &Attributes| -> Attributes {
            let own = attributes.iter().filter(|((scope, _), _)| is_within(scope));
            own.map(|(at, value)| (at.clone(), value.clone())).collect()
        };
        let (before, after) = (own(before), own(after));
        if before != after {
            let attributes = self.attributes_mut();
            before.keys().for_each(|at| attributes.remove(at));
            for (at, value) in after {
                attributes.set(at, &value)?;
            }
        }
        self.restored.push(Arc::clone(from));
        Ok(())
    }

    /// Checks that a tensor may have this name.
    pub(crate) fn check_new(&self, action: &str, name: &str, on_existing: OnExisting) -> Result<()> {
        format::check_text("name", name).refused_to(action)?;
        if on_existing == OnExisting::Refuse && self.tensor(name)?.is_some() {
            let message = format!(
                "{action} {name:?}: the name exists; choose a different one, remove that tensor first, or replace it, \
                 with Transaction::on_existing"
            );
            return Err(Error::new(ErrorKind::NameExists, message));
        }
        Ok(())
    }

    pub(crate) fn existing(&self, action: &str, name: &str) -> Result<TensorRecord> {
        self.tensor(name)?.ok_or_else(|| not_found(action, name, self.tensors("")))
    }

    /// Moves to a newer generation, which must have everything that was read unchanged.
    pub(crate) fn rebase(&mut self, newest: Arc<Generation>) -> Result<()> {
        self.reads().check(&self.generation, &newest)?;
        let rebased = Draft::rebased(self.changes.clone(), newest)?;
        let reads = std::mem::take(&mut self.reads);
        *self = Draft { reads, ..rebased };
        Ok(())
    }

    /// Repeats changes on a newer generation.
    pub(crate) fn rebased(mut changes: Changes, newest: Arc<Generation>) -> Result<Self> {
        let number = newest.number();
        let mut draft = Draft::new(newest);
        let requested = std::mem::take(&mut changes.requested);
        draft.changes = changes;
        for (change, on_existing) in requested {
            draft.apply(change, on_existing).map_err(|e| {
                let kind = match e.kind() {
                    ErrorKind::NameExists => ErrorKind::NameExists,
                    ErrorKind::NameNotFound | ErrorKind::Conflict => ErrorKind::Conflict,
                    // The other commit did not cause this.
                    _ => return e,
                };
                let message = format!("another commit, generation {number}, came before this one: {e}");
                Error::new(kind, message).caused_by(&e)
            })?;
        }
        Ok(draft)
    }

    /// Returns the result of the changes. They are repeated on `newest` if the draft is not based on it.
    pub(super) fn apply_to(self, newest: &Arc<Generation>) -> Result<Applied> {
        // Without this check, a value computed from what was read could replace a newer one.
        step!("reads-hold", self.reads().check(&self.generation, newest))?;
        // Without a rebase, the changes could undo those of another commit.
        let is_on_newest = step!("rebase", self.generation.number() == newest.number());
        let draft = if is_on_newest { self } else { Draft::rebased(self.changes, Arc::clone(newest))? };
        let Draft { tags, restored, .. } = draft;
        let Changes { requested, expected, message, .. } = draft.changes;
        // The records are moved out of the changes, not cloned: a record with clones is copied when its storage id
        // changes.
        let puts = || requested.into_iter().filter_map(|(change, _)| change.into_put()).collect();
        let tensors = draft.tensors.into_inner().unwrap_or_else(puts);
        let attributes = draft.attributes.map(|attributes| attributes.entries);
        Ok(Applied { tensors, expected, attributes, tags, message, restored })
    }
}

/// What the transaction reads.
impl Draft {
    /// Lets the commit succeed whatever happens to what this transaction has read and will read.
    pub(crate) fn ignore_reads(&mut self) {
        self.reads.get_mut().unwrap_or_else(PoisonError::into_inner).ignore();
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a name was looked up. What this transaction saved or removed itself is not a read.
    pub(crate) fn note_name(&self, name: &str, read: Read) {
        let source = match self.origins.get(name) {
            Some(origin) if read == Read::Headers => origin,
            _ if self.changed().contains_key(name) => return,
            _ => name,
        };
        self.reads().add_name(source, read);
    }

    /// Notes that the names that begin with `prefix` were listed.
    pub(crate) fn note_prefix(&self, prefix: &str, read: Read) {
        let mut reads = self.reads();
        reads.add_prefix(prefix, read);
        let renamed = self.origins.range(prefix.to_owned()..);
        for (_, origin) in renamed.take_while(|(name, _)| read == Read::Headers && name.starts_with(prefix)) {
            reads.add_name(origin, read);
        }
    }

    /// Notes that the attributes of a scope were read.
    pub(crate) fn note_attributes(&self, scope: &str) {
        // Attributes move with their names, so those of the scope may be those of a different one.
        let moves = |change: &Change| matches!(change, Change::Rename { .. } | Change::Copy { .. });
        let mut reads = self.reads();
        if self.changes.requested.iter().any(|(change, _)| moves(change)) {
            reads.add_all_attributes();
        }
        reads.add_scope(scope);
    }
}
