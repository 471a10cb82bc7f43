//! Applies the changes of a transaction to the newest generation, which may not be the one it began on.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use stridemap_format::{
    self as format, Attributes, Manifest, Rule, StorageKind, StorageRecord, TensorRecord,
};

use super::attributes::BoundedAttributes;
use super::pinned::{Merged, cloned, not_found};
use super::relocate::Relocation;
use super::{Generation, OpenStore};
use crate::disk::step;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Grown;

/// Ids from here on are provisional: they number a transaction's staged storages.
const FIRST_PROVISIONAL: u64 = 1 << 63;

/// What to do if the target, a tensor or an exported file, already exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExisting {
    /// Replace it.
    #[default]
    Replace,
    /// Refuse the change.
    Refuse,
}

/// A change of the names or the attributes. Changes are kept as they were requested, so that they can be repeated on a
/// newer generation if another writer commits first.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put {
        name: String,
        record: TensorRecord,
    },
    Remove {
        name: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Copy {
        from: String,
        to: String,
    },
    /// Moves the tensors of a storage to a new storage. Skipped without an error if anything about the storage has
    /// changed.
    Relocate(Box<Relocation>),
    /// Rows that were written after the end of the tensor `from`.
    Grow {
        name: String,
        from: TensorRecord,
        to: TensorRecord,
    },
    /// Sets an attribute, or removes it if there is no value.
    SetAttribute {
        scope: String,
        key: String,
        value: Option<String>,
    },
    /// Moves the attributes of a scope that is not the name of a tensor, or removes them if `to` is `None`.
    MoveAttributes {
        from: String,
        to: Option<String>,
    },
}

impl Change {
    /// Returns what a put inserts.
    fn into_put(self) -> Option<(String, Option<TensorRecord>)> {
        match self {
            Change::Put { name, record } => Some((name, Some(record))),
            _ => None,
        }
    }
}

/// All changes of a transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Each change, and what to do if its name already exists.
    pub(crate) requested: Vec<(Change, OnExisting)>,
    /// The storages of earlier generations that the new headers refer to, as the transaction saw them.
    pub(crate) expected: BTreeMap<u64, StorageRecord>,
    /// Applies to later changes, except renames and copies.
    pub(crate) on_existing: OnExisting,
    /// Whether later renames and copies may replace tensors too.
    pub(crate) renames_replace: bool,
    /// The only generation on which the changes may be made.
    pub(crate) expected_generation: Option<u64>,
}

impl Changes {
    /// Checks that the newest generation is the expected one, if one is expected.
    pub(crate) fn check_newest(&self, newest: &Generation) -> Result<()> {
        match self.expected_generation {
            Some(expected) if expected != newest.number() => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "commit on generation {expected} only: the newest is {}; load that one, and start again",
                    newest.number()
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Makes the same check for a transaction that has nothing to commit.
    pub(crate) fn check_generation(&self, store: &OpenStore) -> Result<()> {
        match self.expected_generation {
            Some(_) => self.check_newest(&*store.newest()?),
            None => Ok(()),
        }
    }

    /// Whether all changes are moves, so that skipping them loses nothing.
    pub(crate) fn only_relocates(&self) -> bool {
        self.requested.iter().all(|(change, _)| matches!(change, Change::Relocate(_)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requested.is_empty()
    }

    /// Returns the provisional id of the staged storage at `index`.
    pub(crate) fn provisional_id(index: usize) -> u64 {
        FIRST_PROVISIONAL + index as u64
    }

    /// Returns the index of the staged storage with this id, if the id is provisional.
    pub(crate) fn staged_index(id: u64) -> Option<usize> {
        id.checked_sub(FIRST_PROVISIONAL).map(|index| index as usize)
    }
}

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
}

impl Draft {
    pub(crate) fn new(generation: Arc<Generation>) -> Self {
        Draft { generation, changes: Changes::default(), tensors: OnceLock::new(), attributes: None }
    }

    pub(crate) fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    pub(crate) fn attributes(&self) -> &Attributes {
        self.attributes.as_ref().map_or(&self.generation.manifest().attributes, |changed| &changed.entries)
    }

    pub(super) fn attributes_mut(&mut self) -> &mut BoundedAttributes {
        let current = || BoundedAttributes::new(self.generation.manifest().attributes.clone());
        self.attributes.get_or_insert_with(current)
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
        let merged = Merged::new(self.generation.tensors(prefix)?, cloned(delta));
        Ok(merged.take_while(move |entry| entry.as_ref().map_or(true, |(name, _)| name.starts_with(prefix))))
    }

    pub(crate) fn apply(&mut self, change: Change, on_existing: OnExisting) -> Result<()> {
        match &change {
            Change::Put { name, record } => {
                self.check_new("save", name, on_existing)?;
                if let Some(changed) = self.tensors.get_mut() {
                    changed.insert(name.clone(), Some(record.clone()));
                }
            }
            Change::Remove { name } => {
                self.existing("remove", name)?;
                self.set(name.clone(), None);
                self.remove_attributes(name);
            }
            Change::Rename { from, to } => {
                let record = self.existing("rename", from)?;
                self.check_new("rename to", to, on_existing)?;
                self.move_attributes(from, to)?;
                self.set(to.clone(), Some(record));
                self.set(from.clone(), None);
            }
            Change::Copy { from, to } => {
                let record = self.existing("copy", from)?;
                self.check_new("copy to", to, on_existing)?;
                self.copy_attributes(from, to)?;
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
            Change::SetAttribute { scope, key, value } => {
                self.set_attribute(scope, key, value.as_deref())?;
            }
            // Another commit may have created a tensor with this name since the request. The attributes then belong
            // to that tensor.
            Change::MoveAttributes { from, .. } if self.tensor(from)?.is_some() => {}
            Change::MoveAttributes { from, to: Some(to) } => self.move_attributes(from, to)?,
            Change::MoveAttributes { from, to: None } => self.remove_attributes(from),
        }
        self.changes.requested.push((change, on_existing));
        Ok(())
    }

    /// Checks that a tensor may have this name.
    pub(crate) fn check_new(&self, action: &str, name: &str, on_existing: OnExisting) -> Result<()> {
        format::check_text("name", name).map_err(|e| Error::refused(action, e))?;
        if on_existing == OnExisting::Refuse && self.tensor(name)?.is_some() {
            let message = format!(
                "{action} {name:?}: the name exists; choose a different one, remove that tensor first, or replace it \
                 with OnExisting::Replace"
            );
            return Err(Error::new(ErrorKind::NameExists, message));
        }
        Ok(())
    }

    pub(crate) fn existing(&self, action: &str, name: &str) -> Result<TensorRecord> {
        self.tensor(name)?.ok_or_else(|| not_found(action, name, |prefix| self.tensors(prefix)))
    }

    /// Repeats the changes on a newer generation.
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
                Error::new(kind, message).with_source(e)
            })?;
        }
        Ok(draft)
    }
}

/// The manifest to publish next, and the indices of the staged storages that it uses, with their final ids.
pub(crate) struct Plan {
    pub(crate) manifest: Manifest,
    pub(crate) used_staged: Vec<(usize, u64)>,
}

/// Applies a transaction to the newest generation.
pub(crate) fn plan(
    newest: &Arc<Generation>,
    draft: Draft,
    staged: &[StorageRecord],
    grown: &[Grown],
) -> Result<Plan> {
    step!("expected-generation", draft.changes.check_newest(newest))?;
    // Without a rebase, the changes could undo those of another commit.
    let is_on_newest = step!("rebase", draft.generation.number() == newest.number());
    let draft = if is_on_newest { draft } else { Draft::rebased(draft.changes, Arc::clone(newest))? };
    let Draft { changes: Changes { requested, expected, .. }, tensors, attributes, .. } = draft;
    // The records are moved out of the changes, not cloned: their storage ids are changed below.
    let puts = |requested: Vec<(Change, _)>| {
        requested.into_iter().filter_map(|(change, _)| change.into_put()).collect()
    };
    let mut tensors: BTreeMap<_, _> = tensors.into_inner().unwrap_or_else(|| puts(requested));
    check_ids_left(newest)?;
    let mut manifest = newest.manifest().clone();
    manifest.generation = manifest.generation.checked_add(1).ok_or_else(|| out_of_numbers("generations"))?;

    // How many names each storage gains or loses.
    let before = newest.tensors_named(&tensors)?;
    let mut gains: BTreeMap<u64, i64> = BTreeMap::new();
    for (name, after) in &tensors {
        for (record, gain) in [(before.get(name.as_str()), -1), (after.as_ref(), 1)] {
            if let Some(record) = record {
                *gains.entry(record.storage_id).or_default() += gain;
            }
        }
    }
    drop(before);
    let grown = grown_storages(newest, grown)?;
    for &id in grown.keys() {
        gains.entry(id).or_default();
    }

    let (mut used_staged, mut new_ids) = (Vec::new(), BTreeMap::new());
    for (&id, &gain) in &gains {
        let (id, record) = match Changes::staged_index(id) {
            Some(_) if gain == 0 => continue,
            Some(index) => {
                let new_id = manifest.next_storage_id;
                manifest.next_storage_id += 1;
                used_staged.push((index, new_id));
                new_ids.insert(id, new_id);
                (new_id, staged.get(index).cloned())
            }
            None => match grown.get(&id) {
                Some(grown) => (id, Some(grown.clone())),
                None => (id, expected_storage(newest, &expected, id)?),
            },
        };
        let broken = |rule, detail| {
            let broken = format::Error::new(rule, format!("{detail} {id:016x}"));
            Error::new(ErrorKind::Corrupt, format!("{broken}; verify the store")).with_source(broken)
        };
        let mut record =
            record.ok_or_else(|| broken(Rule::StorageMissing, "there is no record of storage"))?;
        record.tensor_count = record
            .tensor_count
            .checked_add_signed(gain)
            .ok_or_else(|| broken(Rule::RecordCount, "more tensors than counted refer to storage"))?;
        if record.tensor_count == 0 {
            manifest.garbage.insert(id, manifest.generation);
            manifest.storages.insert(id, None);
        } else if gain != 0 || grown.contains_key(&id) {
            manifest.storages.insert(id, Some(record));
        }
    }
    for record in tensors.values_mut() {
        if let Some(new_id) = record.as_ref().and_then(|record| new_ids.get(&record.storage_id)) {
            let moved = record.take().map(|record| record.with_storage_id(*new_id)).transpose();
            *record = moved.map_err(|e| Error::refused("save", e))?;
        }
    }
    if manifest.tensors.is_empty() {
        manifest.tensors = tensors;
    } else {
        manifest.tensors.extend(tensors);
    }
    if manifest.table.is_none() {
        // Without a table, a removal has no entry to hide.
        manifest.tensors.retain(|_, record| record.is_some());
        manifest.storages.retain(|_, record| record.is_some());
    }
    if let Some(attributes) = attributes {
        manifest.attributes = attributes.entries;
    }
    Ok(Plan { manifest, used_staged })
}

/// Checks that real ids are still below the provisional ones. Only a malformed store has used that many.
pub(crate) fn check_ids_left(generation: &Generation) -> Result<()> {
    if generation.manifest().next_storage_id < FIRST_PROVISIONAL {
        return Ok(());
    }
    Err(out_of_numbers("storage ids"))
}

fn out_of_numbers(what: &str) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("this store has no {what} left; export its tensors, and import them into a new store"),
    )
}

/// Returns the new records of the storages that have grown. Their growth locks have been held since their records
/// were read, and their bytes must be the same in the newest generation.
fn grown_storages(newest: &Generation, grown: &[Grown]) -> Result<BTreeMap<u64, StorageRecord>> {
    // Where locks work, the growth lock ensures this.
    let is_as_before = |now: &StorageRecord, from: &StorageRecord| {
        step!("grown-is-as-before", now.length_bytes == from.length_bytes && now.kind == from.kind)
    };
    let record = |grown: &Grown| match newest.storage(grown.id)? {
        Some(now) if is_as_before(&now, &grown.from) => {
            Ok((grown.id, StorageRecord { tensor_count: now.tensor_count, ..grown.to.clone() }))
        }
        _ => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "append: storage {:016x} has changed in generation {} since the rows were written; append them again",
                grown.id,
                newest.number()
            ),
        )),
    };
    grown.iter().map(record).collect()
}

/// Whether a storage is unchanged or has only grown.
fn still_holds(now: &StorageRecord, seen: &StorageRecord) -> bool {
    let is_longer_sealed =
        matches!((&now.kind, &seen.kind), (StorageKind::Sealed(_), StorageKind::Sealed(_)))
            && now.length_bytes > seen.length_bytes;
    is_longer_sealed || (now.kind == seen.kind && now.length_bytes >= seen.length_bytes)
}

/// Returns the record of a storage. If a view refers to it, the newest generation must still have it.
fn expected_storage(
    newest: &Generation,
    expected: &BTreeMap<u64, StorageRecord>,
    id: u64,
) -> Result<Option<StorageRecord>> {
    let found = newest.storage(id)?;
    // Without this check, the header of a view could refer to nothing.
    if let Some(expected) = expected.get(&id)
        && !step!("expected-storage", found.as_ref().is_some_and(|now| still_holds(now, expected)))
    {
        return Err(storage_gone("save a view", id, newest.number()));
    }
    Ok(found)
}

pub(crate) fn storage_gone(action: impl fmt::Display, id: u64, generation: u64) -> Error {
    let message = format!(
        "{action}: storage {id:016x}, which it refers to, is gone from generation {generation}: its tensors were \
         removed, or moved by a compaction; load the tensor again, or save it, which copies its elements"
    );
    Error::new(ErrorKind::Conflict, message)
}
