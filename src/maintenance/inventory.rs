//! Lists every file in a store's directories, and why it exists. `verify` reports the unneeded files of this list, and
//! `usage` adds it up.

use std::cell::LazyCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::needs::Needs;
use crate::disk::{FileId, StoreFile};
use crate::error::{IoContext, Result, one_line};
use crate::generation::{Generation, OpenStore, by_processes, generations_in_use, holders, writers_of};

/// How many times the files are listed, if a commit is made during each listing.
const MAX_TRIES: u32 = 10;

/// A file of which the newest generation does not need all bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpareFile {
    /// The file.
    pub path: PathBuf,
    /// How many of its bytes are not needed.
    pub spare_bytes: u64,
    /// Why they are on disk.
    pub reason: SpaceReason,
    /// The length of the file in bytes.
    pub size_bytes: u64,
    /// The storage whose bytes these are, if tensors keep the rest of it; otherwise `None`.
    pub storage_id: Option<u64>,
    /// The first few of these tensors.
    pub names: Vec<String>,
}

impl fmt::Display for SpareFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpareFile { path, spare_bytes, reason, .. } = self;
        f.write_str(&one_line(&format!("{}: {spare_bytes} bytes: {reason}", path.display())))
    }
}

/// Why bytes that no tensor of the newest generation refers to are on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SpaceReason {
    /// They are in a storage with tensors, but no tensor reaches them. [`Store::compact`](crate::Store::compact) frees
    /// them.
    Unreached,
    /// Like `Unreached`, but a compaction leaves them: they are less than a quarter of the storage or less than a block
    /// of 4 KiB, which a compaction of all storages frees, or the storage is mutable or live, and its file is changed in
    /// place. Saving its tensors again moves them to new storages.
    Kept,
    /// Only tagged generations need the file, or the bytes. The commit that removes their tags deletes the file.
    Tagged {
        /// The oldest tagged generation that needs it.
        generation: u64,
    },
    /// Only an older generation needs the file, and some process still uses that generation. Once these processes
    /// have moved on, the next commit or [`Store::gc`](crate::Store::gc) deletes it.
    Pinned {
        /// The oldest generation in use that needs it.
        generation: u64,
        /// All processes that use such a generation, as far as the system reports them.
        processes: Vec<u32>,
    },
    /// The file is being written, by these processes as far as the system reports them.
    Writing {
        /// The writers.
        processes: Vec<u32>,
    },
    /// Nothing needs them: the files of older generations, and what aborted or killed writers left, such as bytes after
    /// the end of a storage. [`Store::gc`](crate::Store::gc) frees them; later commits delete some of these files. They
    /// may also belong to a commit or an append in progress that the system does not report.
    Garbage,
    /// The file does not belong to the store. Nothing deletes it.
    Foreign,
}

impl SpaceReason {
    /// Returns the reason as one word: `unreached`, `kept`, `tagged`, `pinned`, `writing`, `garbage` or
    /// `foreign`.
    ///
    /// ```
    /// # use stridemap::maintenance::SpaceReason;
    /// assert_eq!(SpaceReason::Garbage.name(), "garbage");
    /// ```
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            SpaceReason::Unreached => "unreached",
            SpaceReason::Kept => "kept",
            SpaceReason::Tagged { .. } => "tagged",
            SpaceReason::Pinned { .. } => "pinned",
            SpaceReason::Writing { .. } => "writing",
            SpaceReason::Garbage => "garbage",
            SpaceReason::Foreign => "foreign",
        }
    }

    /// Returns the processes that keep the bytes on disk, as far as the system reports them.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &[1u8])?;
    /// let snapshot = store.snapshot();
    /// store.remove("x")?;
    /// let usage = store.disk_usage()?;
    /// assert!(usage.spare.iter().any(|file| file.reason.processes() == [std::process::id()]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn processes(&self) -> &[u32] {
        match self {
            SpaceReason::Pinned { processes, .. } | SpaceReason::Writing { processes } => processes,
            _ => &[],
        }
    }

    /// Returns whether a tag or a process needs the bytes now.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, SpaceReason::Tagged { .. } | SpaceReason::Pinned { .. } | SpaceReason::Writing { .. })
    }
}

/// Shows the reason, and what frees the bytes.
impl fmt::Display for SpaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpaceReason::Unreached => "unreferenced bytes; compact frees them",
            SpaceReason::Kept => {
                "unreferenced bytes that compact leaves; compact --all frees them if the tensors are sealed, and \
                 saving the tensors again always does"
            }
            SpaceReason::Tagged { generation } => return write!(f, "generation {generation} is tagged"),
            SpaceReason::Pinned { generation, processes } => {
                return write!(f, "generation {generation} is held{}", by_processes(processes));
            }
            SpaceReason::Writing { processes } => {
                return write!(f, "being written{}", by_processes(processes));
            }
            SpaceReason::Garbage => "nothing needs these bytes; gc frees them",
            SpaceReason::Foreign => "not a file of the store; nothing deletes it",
        })
    }
}

/// Bytes of a file that the newest generation does not need, and why they are on disk.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) bytes: u64,
    pub(super) reason: SpaceReason,
}

/// A file in one of the store's directories.
#[derive(Debug)]
pub(crate) struct ListedFile {
    pub(crate) file: StoreFile,
    path: PathBuf,
    pub(crate) size_bytes: u64,
    /// The inode, unless this is its only name, or it is a directory.
    pub(crate) shared_id: Option<FileId>,
    spare: Option<Spare>,
}

impl ListedFile {
    /// Returns how little the file is needed: 0 if the newest generation needs it, 1 if a process holds it, 2 if it is
    /// garbage, and 3 if it is not the store's.
    pub(crate) fn spareness(&self) -> u8 {
        match &self.spare {
            Some(Spare { reason: SpaceReason::Foreign, .. }) => 3,
            Some(spare) if spare.bytes < self.size_bytes => 0,
            Some(spare) if spare.reason.is_held() => 1,
            Some(_) => 2,
            None => 0,
        }
    }

    /// Returns the bytes that the newest generation does not need, if there are any.
    pub(crate) fn spare(self) -> Option<SpareFile> {
        let Spare { bytes, reason } = self.spare?;
        Some(SpareFile {
            path: self.path,
            spare_bytes: bytes,
            reason,
            size_bytes: self.size_bytes,
            storage_id: None,
            names: Vec::new(),
        })
    }
}

/// The files of a store at one moment.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) newest: Arc<Generation>,
    /// In ascending order of path.
    pub(crate) files: Vec<ListedFile>,
}

impl Inventory {
    /// Lists the files, then finds the newest generation. So no file that this generation needs was deleted
    /// before the listing: each is in the list, or was created later. Lists again if a commit is made meanwhile.
    pub(crate) fn take(store: &OpenStore) -> Result<Self> {
        let mut tries = 0;
        loop {
            let before = store.newest_of_all()?.number();
            let files = list(store)?;
            let newest = store.newest_of_all()?;
            tries += 1;
            if newest.number() == before || tries == MAX_TRIES {
                return Self::of(store, newest, files);
            }
        }
    }

    fn of(store: &OpenStore, newest: Arc<Generation>, mut files: Vec<ListedFile>) -> Result<Self> {
        let pins = generations_in_use(store, &newest)?;
        let needs = Needs::of(store, &newest, pins, true)?;
        let writers = LazyCell::new(|| holders(store, &store.paths.lock()));
        for listed in &mut files {
            listed.spare = needs.spare(listed.file, listed.size_bytes);
            let Some(spare) = &mut listed.spare else { continue };
            let processes = match listed.file {
                StoreFile::Unfinished => match writers_of(store, &listed.path) {
                    Some(processes) => {
                        spare.reason = SpaceReason::Writing { processes };
                        continue;
                    }
                    // Created, but not locked yet.
                    None => writers.clone(),
                },
                // The bytes are past the end of the storage.
                StoreFile::Storage(id) | StoreFile::Digests(id) if needs.has_storage(listed.file) => {
                    holders(store, &store.paths.storage(id))
                }
                file if needs.may_be_published(file) => writers.clone(),
                _ => Vec::new(),
            };
            if !processes.is_empty() {
                spare.reason = SpaceReason::Writing { processes };
            }
        }
        // A commit may have deleted some of them since they were listed.
        files.retain(|listed| {
            let is_held = listed.spare.as_ref().is_none_or(|spare| spare.reason.is_held());
            is_held || store.disk.stat(&listed.path).is_ok()
        });
        Ok(Inventory { newest, files })
    }
}

fn list(store: &OpenStore) -> Result<Vec<ListedFile>> {
    let mut files = Vec::new();
    for dir in store.paths.dirs() {
        for name in store.disk.list(&dir).doing("list", &dir)? {
            let path = dir.join(&name);
            match store.disk.stat(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                stat => {
                    // A directory is not the store's, whatever its name.
                    let is_dir = store.disk.is_dir(&path).unwrap_or(false);
                    let file = match is_dir {
                        true => StoreFile::Foreign,
                        false => StoreFile::in_dir(&store.paths, &dir, &name),
                    };
                    let size_bytes = stat.as_ref().map_or(0, |stat| stat.size_bytes);
                    let shared = stat.ok().filter(|stat| stat.link_count > 1 && !is_dir);
                    let shared_id = shared.map(|stat| stat.id());
                    files.push(ListedFile { file, path, size_bytes, shared_id, spare: None });
                }
            }
        }
    }
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
