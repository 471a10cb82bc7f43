//! What is on a disk, as a running system sees it and as a power cut would leave it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of a file or directory, for good.
pub(super) type Inode = u64;

pub(super) const ROOT: Inode = 0;

/// Names that change at once, each to a file or directory, or away.
type Renames = Vec<(String, Option<Inode>)>;

/// One thing that was done to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// A file came to be, without a name yet.
    CreateFile(u64),
    /// A directory came to be, without a name yet.
    CreateDir(u64),
    /// Names in a directory changed, at once: each goes to a file, or away.
    Names {
        /// The directory.
        dir: u64,
        /// Names and what they stand for from then on.
        changes: Vec<(String, Option<u64>)>,
    },
    /// Bytes of a file were written.
    Write {
        /// The file.
        file: u64,
        /// Where.
        offset_bytes: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// A file's length was set.
    SetLen {
        /// The file.
        file: u64,
        /// To what.
        length_bytes: u64,
    },
    /// A file's bytes and length became durable.
    Sync(u64),
    /// A directory's names became durable.
    SyncDir(u64),
    /// Everything became durable.
    SyncAll,
    /// Not an operation: something that a test wants to find in the log.
    Mark(String),
}

/// What of the unsynced a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// All of it.
    EverythingKept,
    /// Nothing.
    EverythingLost,
    /// Names, but not bytes and lengths.
    NamesKept,
    /// Bytes and lengths, but not names.
    DataKept,
    /// One change of names, by its place among those pending, and no bytes and lengths.
    OneNameKept(usize),
}

/// The root is a directory without a `Create`: it is there, and it stays.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) files: BTreeMap<Inode, Versions<Vec<u8>>>,
    pub(super) dirs: BTreeMap<Inode, Versions<BTreeMap<String, Inode>>>,
    /// Changes of names that are not durable, in order.
    pub(super) pending: Vec<(Inode, Renames)>,
    /// When a file's bytes or length last changed. The clock is the number of such changes.
    pub(super) changed: BTreeMap<Inode, i64>,
    clock: i64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Versions<T> {
    pub(super) live: T,
    durable: T,
}

impl<T: Clone> Versions<T> {
    fn sync(&mut self) {
        self.durable.clone_from(&self.live);
    }
}

impl Default for World {
    fn default() -> Self {
        World {
            files: BTreeMap::new(),
            dirs: BTreeMap::from([(ROOT, Versions::default())]),
            pending: Vec::new(),
            changed: BTreeMap::new(),
            clock: 0,
        }
    }
}

impl World {
    pub(super) fn apply(&mut self, op: &Op) {
        if let Op::CreateFile(file) | Op::Write { file, .. } | Op::SetLen { file, .. } = op {
            self.clock += 1;
            self.changed.insert(*file, self.clock);
        }
        match op {
            Op::CreateFile(inode) => drop(self.files.entry(*inode).or_default()),
            Op::CreateDir(inode) => drop(self.dirs.entry(*inode).or_default()),
            Op::Names { dir, changes } => {
                change_names(&mut self.dirs.entry(*dir).or_default().live, changes);
                self.pending.push((*dir, changes.clone()));
            }
            Op::Write { file, offset_bytes, bytes } => {
                let live = &mut self.files.entry(*file).or_default().live;
                let start = *offset_bytes as usize;
                live.resize(live.len().max(start + bytes.len()), 0);
                live[start..start + bytes.len()].copy_from_slice(bytes);
            }
            Op::SetLen { file, length_bytes } => {
                self.files.entry(*file).or_default().live.resize(*length_bytes as usize, 0);
            }
            Op::Sync(file) => self.files.entry(*file).or_default().sync(),
            Op::SyncDir(dir) => {
                self.dirs.entry(*dir).or_default().sync();
                self.pending.retain(|(changed, _)| changed != dir);
            }
            Op::SyncAll => {
                self.dirs.values_mut().for_each(Versions::sync);
                self.files.values_mut().for_each(Versions::sync);
                self.pending.clear();
            }
            Op::Mark(_) => {}
        }
    }

    /// The world after the power is back: nothing is pending.
    pub(super) fn cut(mut self, outcome: Outcome) -> World {
        let keeps_names = matches!(outcome, Outcome::EverythingKept | Outcome::NamesKept);
        let keeps_data = matches!(outcome, Outcome::EverythingKept | Outcome::DataKept);
        if let Outcome::OneNameKept(place) = outcome
            && let Some((dir, changes)) = self.pending.get(place)
        {
            change_names(&mut self.dirs.entry(*dir).or_default().durable, changes);
        }
        for names in self.dirs.values_mut() {
            if keeps_names {
                names.durable = std::mem::take(&mut names.live);
            }
            names.live.clone_from(&names.durable);
        }
        for bytes in self.files.values_mut() {
            if keeps_data {
                bytes.durable = std::mem::take(&mut bytes.live);
            }
            bytes.live.clone_from(&bytes.durable);
        }
        self.pending.clear();
        self
    }
}

fn change_names(names: &mut BTreeMap<String, Inode>, changes: &[(String, Option<Inode>)]) {
    for (name, inode) in changes {
        match inode {
            Some(inode) => names.insert(name.clone(), *inode),
            None => names.remove(name),
        };
    }
}
