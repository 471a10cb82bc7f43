//! The changes that a transaction requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::{StorageRecord, TensorRecord};

use super::Generation;
use super::relocate::Relocation;

/// Ids from here on are provisional: they number a transaction's staged storages.
pub(super) const FIRST_PROVISIONAL: u64 = 1 << 63;

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
        /// The operation, for an error.
        action: &'static str,
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
    Tag {
        name: String,
        of: Tagged,
    },
    Untag {
        name: String,
    },
    /// Restores the headers and attributes of the names that begin with a prefix, as they are in an earlier generation, and
    /// removes the other names with this prefix.
    Restore {
        from: Arc<Generation>,
        prefix: String,
    },
    /// Sets an attribute, or removes it if there is no value.
    SetAttribute {
        scope: String,
        key: String,
        value: Option<String>,
    },
}

/// The generation that a new tag names.
#[derive(Clone, Debug)]
pub(crate) enum Tagged {
    /// The one that the transaction publishes.
    Published,
    /// The one before it, on which the changes are repeated.
    Previous,
    Earlier(Arc<Generation>),
}

impl Change {
    /// Returns what a put inserts.
    pub(super) fn into_put(self) -> Option<(String, Option<TensorRecord>)> {
        match self {
            Change::Put { name, record, .. } => Some((name, Some(record))),
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
    /// What the user says about the generation.
    pub(crate) message: Option<String>,
    /// Applies to later changes. `None` if each kind of change has its own default.
    pub(crate) on_existing: Option<OnExisting>,
}

impl Changes {
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
