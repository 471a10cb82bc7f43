use std::fmt;

use stridemap_format::RecordKind;

/// How a storage's bytes may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StorageKind {
    /// The bytes never change. Rows can be [appended](crate::Store::append) after them.
    Sealed,
    /// In place, under an exclusive lock.
    Mutable,
    /// At any time, with atomic accesses of one size.
    Live,
    /// The store does not change them. The file is outside the store.
    External,
}

impl StorageKind {
    pub(crate) fn of(record: &RecordKind) -> Self {
        match record {
            RecordKind::Sealed(_) => StorageKind::Sealed,
            RecordKind::Mutable => StorageKind::Mutable,
            RecordKind::Live { .. } => StorageKind::Live,
            RecordKind::External(_) => StorageKind::External,
        }
    }
}

/// Shows `sealed`, `mutable`, `live` or `external`.
impl fmt::Display for StorageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StorageKind::Sealed => "sealed",
            StorageKind::Mutable => "mutable",
            StorageKind::Live => "live",
            StorageKind::External => "external",
        })
    }
}
