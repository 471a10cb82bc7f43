//! The names of a store's files.

use std::path::{Path, PathBuf};

/// The prefix of the names of unfinished files.
pub const STAGE_PREFIX: &str = ".stage-";

/// How the names of the files begin, in the directory of the store, in which the remotes of the store are recorded.
pub const REMOTE_PREFIX: &str = "REMOTE-";

/// Returns the directory that contains a path.
pub(crate) fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The paths of a store's files.
#[derive(Clone, Debug)]
pub(crate) struct StorePaths {
    root: PathBuf,
}

impl StorePaths {
    /// Returns the paths of the store at `root`. A redundant `.` or `/` is removed, because `Path::parent` of a file
    /// removes it too.
    pub(crate) fn new(root: &Path) -> Self {
        StorePaths { root: root.components().collect() }
    }

    /// Returns the paths of a store that is not in a file system. `location` is kept as it is, so `//` in a URL stays.
    pub(crate) fn of_location(location: &str) -> Self {
        StorePaths { root: PathBuf::from(location.trim_end_matches('/')) }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn format_file(&self) -> PathBuf {
        self.root.join("FORMAT")
    }

    /// The object of a remote that is replaced. A store has no file of this name.
    pub(crate) fn remote_head(&self) -> PathBuf {
        self.root.join("HEAD")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("LOCK")
    }

    pub(crate) fn unsynced(&self) -> PathBuf {
        self.root.join("UNSYNCED")
    }

    pub(crate) fn storages_dir(&self) -> PathBuf {
        self.root.join("storages")
    }

    pub(crate) fn meta_dir(&self) -> PathBuf {
        self.root.join("meta")
    }

    pub(crate) fn generations_dir(&self) -> PathBuf {
        self.root.join("generations")
    }

    /// The directories that hold the store's files. What manifests refer to comes before them.
    pub(crate) fn dirs(&self) -> [PathBuf; 3] {
        [self.storages_dir(), self.generations_dir(), self.meta_dir()]
    }

    pub(crate) fn storage(&self, id: u64) -> PathBuf {
        self.root.join(format!("storages/{id:016x}.bin"))
    }

    pub(crate) fn sum(&self, id: u64) -> PathBuf {
        self.root.join(format!("storages/{id:016x}.sum"))
    }

    pub(crate) fn manifest(&self, generation: u64) -> PathBuf {
        self.root.join(format!("meta/{generation:016x}.man"))
    }

    /// The manifest of a generation that a tag names.
    pub(crate) fn kept_manifest(&self, generation: u64) -> PathBuf {
        self.root.join(format!("generations/{generation:016x}.man"))
    }

    /// The table of tags, kept generations and garbage.
    pub(crate) fn history(&self, generation: u64) -> PathBuf {
        self.root.join(format!("meta/{generation:016x}.his"))
    }

    pub(crate) fn table(&self, generation: u64) -> PathBuf {
        self.root.join(format!("generations/{generation:016x}.tab"))
    }
}

/// Returns the number in a name of exactly sixteen lowercase hexadecimal digits and `.extension`.
pub(crate) fn number_in(name: &str, extension: &str) -> Option<u64> {
    let digits = name.strip_suffix(extension)?.strip_suffix('.')?;
    let canonical = digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    canonical.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// A file in one of the store's directories, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFile {
    /// The manifest of this generation, in `meta/`.
    Manifest(u64),
    /// The manifest of this generation, in `generations/`, where a tag keeps it.
    KeptManifest(u64),
    /// The table of storages and tensors written by this generation.
    Table(u64),
    /// The table of tags, kept generations and garbage written by this generation.
    History(u64),
    /// The bytes of the storage with this id.
    Storage(u64),
    /// The chunk digests of the storage with this id.
    Digests(u64),
    /// A file that is not finished, under a temporary name.
    Unfinished,
    /// Not a file of the store.
    Foreign,
}

impl StoreFile {
    /// Returns the file of this name in one of the store's [directories](StorePaths::dirs).
    pub(crate) fn in_dir(paths: &StorePaths, dir: &Path, name: &str) -> Self {
        let number = |extension, file: fn(u64) -> StoreFile| number_in(name, extension).map(file);
        let found = if name.starts_with(STAGE_PREFIX) {
            Some(StoreFile::Unfinished)
        } else if dir == paths.meta_dir() {
            number("man", StoreFile::Manifest).or_else(|| number("his", StoreFile::History))
        } else if dir == paths.generations_dir() {
            number("man", StoreFile::KeptManifest).or_else(|| number("tab", StoreFile::Table))
        } else {
            number("bin", StoreFile::Storage).or_else(|| number("sum", StoreFile::Digests))
        };
        found.unwrap_or(StoreFile::Foreign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_numbers() {
        assert_eq!(number_in("00000000000000ff.man", "man"), Some(255));
        for name in [
            "ff.man",
            "00000000000000FF.man",
            "00000000000000ff.tab",
            "+0000000000000ff.man",
            "00000000000000ff.man.bak",
        ] {
            assert_eq!(number_in(name, "man"), None, "{name}");
        }
    }
}
