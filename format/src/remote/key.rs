//! The files of a store that a remote has in its index.

use serde::{Deserialize, Deserializer, Serialize};

use super::names::number_from_hex;
use crate::{Rule, codec};

/// A kind of file of a store. `FORMAT` and the newest manifest are in no index: they are objects of their own, or inside
/// the remote manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum FileKind {
    /// `generations/<generation>.man`: the manifest of a generation that a tag keeps.
    KeptManifest,
    /// `generations/<generation>.tab`: a table of storages and tensors.
    Table,
    /// `meta/<generation>.his`: a table of the history.
    History,
    /// `storages/<id>.bin`: the bytes of a storage.
    Storage,
    /// `storages/<id>.sum`: the digests of the full chunks of a sealed storage.
    Sum,
}

impl FileKind {
    /// All kinds, in their order in an index.
    pub const ALL: [FileKind; 5] =
        [FileKind::KeptManifest, FileKind::Table, FileKind::History, FileKind::Storage, FileKind::Sum];

    /// Returns the directory in the store, and the extension of the name.
    const fn place(self) -> (&'static str, &'static str) {
        match self {
            FileKind::KeptManifest => ("generations", "man"),
            FileKind::Table => ("generations", "tab"),
            FileKind::History => ("meta", "his"),
            FileKind::Storage => ("storages", "bin"),
            FileKind::Sum => ("storages", "sum"),
        }
    }
}

impl<'de> Deserialize<'de> for FileKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A choice without fields is its number.
        let number = usize::deserialize(deserializer)?;
        let kind = FileKind::ALL.get(number).copied();
        kind.ok_or_else(|| codec::refuse(Rule::RemoteChoice, "it has an unknown kind of file"))
    }
}

/// A file of a store: its kind, and the generation or the storage id in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileKey {
    /// The kind of file.
    pub kind: FileKind,
    /// The generation of a manifest or table, or the id of a storage.
    pub number: u64,
}

impl FileKey {
    /// Returns the path of the file, relative to the directory of the store.
    ///
    /// ```
    /// # use stridemap_format::remote::{FileKey, FileKind};
    /// let key = FileKey { kind: FileKind::Storage, number: 5 };
    /// assert_eq!(key.path(), "storages/0000000000000005.bin");
    /// assert_eq!(FileKey::from_path(&key.path()), Some(key));
    /// ```
    #[must_use]
    pub fn path(self) -> String {
        let (directory, extension) = self.kind.place();
        format!("{directory}/{:016x}.{extension}", self.number)
    }

    /// Returns the file at a path such as [`path`](Self::path) returns, or `None` for any other path.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        let (directory, name) = path.split_once('/')?;
        let (digits, extension) = name.split_once('.')?;
        let kind = FileKind::ALL.into_iter().find(|kind| kind.place() == (directory, extension))?;
        Some(FileKey { kind, number: number_from_hex(digits)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_path_of_its_own_that_leads_back() {
        for kind in FileKind::ALL {
            for number in [0, 1, 0xABCD, u64::MAX] {
                let key = FileKey { kind, number };
                assert_eq!(FileKey::from_path(&key.path()), Some(key), "{}", key.path());
            }
        }
    }

    #[test]
    fn other_paths_are_no_files_of_an_index() {
        let path = FileKey { kind: FileKind::Storage, number: 0xAB }.path();
        for other in [
            "FORMAT",
            "LOCK",
            "meta/0000000000000001.man",
            "meta/0000000000000001.tab",
            "storages/0000000000000001.man",
            "storages/000000000000001.bin",
            "storages/+000000000000001.bin",
            "./storages/0000000000000001.bin",
            &path.to_uppercase(),
            &path.replace("ab", "AB"),
            &(path.clone() + "."),
            &path[1..],
        ] {
            assert_eq!(FileKey::from_path(other), None, "{other}");
        }
    }
}
