//! The content of a disk, as a running system sees it and as a power cut may leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::Op;
use super::cut::Survivors;
use super::file::File;

/// The number of a file or directory, which never changes.
pub(super) type Inode = u64;

pub(super) const ROOT: Inode = 0;

/// Names that change at once, and the inode that each now refers to; `None` for a removed name.
pub(super) type Renames = Vec<(String, Option<Inode>)>;

/// The files and directories of a disk. The root is a directory that was not created by an operation and always
/// exists. Clones share unchanged parts.
#[derive(Clone, Debug)]
pub(super) struct World {
    block_bytes: usize,
    pub(super) files: BTreeMap<Inode, Arc<File>>,
    pub(super) dirs: BTreeMap<Inode, Arc<Dir>>,
    /// Name changes that are not durable, in order.
    pub(super) pending: Vec<(Inode, Renames)>,
    /// When a file's bytes or length last changed. The clock counts such changes.
    pub(super) changed: BTreeMap<Inode, i64>,
    clock: i64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Dir {
    pub(super) live: BTreeMap<String, Inode>,
    durable: BTreeMap<String, Inode>,
}

impl World {
    pub(super) fn new(block_bytes: usize) -> Self {
        World {
            block_bytes,
            files: BTreeMap::new(),
            dirs: BTreeMap::from([(ROOT, Arc::default())]),
            pending: Vec::new(),
            changed: BTreeMap::new(),
            clock: 0,
        }
    }

    fn file(&mut self, file: Inode) -> &mut File {
        let block_bytes = self.block_bytes;
        Arc::make_mut(self.files.entry(file).or_insert_with(|| Arc::new(File::new(block_bytes))))
    }

    fn dir(&mut self, dir: Inode) -> &mut Dir {
        Arc::make_mut(self.dirs.entry(dir).or_default())
    }

    pub(super) fn apply(&mut self, op: &Op) {
        if let Op::CreateFile(file) | Op::Write { file, .. } | Op::SetLen { file, .. } = op {
            self.clock += 1;
            self.changed.insert(*file, self.clock);
        }
        match op {
            Op::CreateFile(inode) => drop(self.file(*inode)),
            Op::CreateDir(inode) => drop(self.dir(*inode)),
            Op::Names { dir, changes } => {
                change_names(&mut self.dir(*dir).live, changes);
                self.pending.push((*dir, changes.clone()));
            }
            Op::Write { file, offset_bytes, bytes } => self.file(*file).write(bytes, *offset_bytes),
            Op::SetLen { file, length_bytes } => self.file(*file).set_length(*length_bytes),
            Op::Sync(file) => self.file(*file).sync(),
            Op::SyncDir(dir) => {
                let names = self.dir(*dir);
                names.durable.clone_from(&names.live);
                self.pending.retain(|(changed, _)| changed != dir);
            }
            Op::SyncAll => {
                let dirs: Vec<Inode> = self.dirs.keys().copied().collect();
                dirs.into_iter().for_each(|dir| self.apply(&Op::SyncDir(dir)));
                self.files
                    .values_mut()
                    .filter(|file| !file.is_synced())
                    .for_each(|file| Arc::make_mut(file).sync());
            }
            Op::Mark(_) => {}
        }
    }

    /// Returns the directories that a power cut leaves if it keeps these pending changes.
    pub(super) fn cut_names(&self, kept: &[bool]) -> BTreeMap<Inode, Arc<Dir>> {
        let mut dirs: BTreeMap<Inode, Arc<Dir>> = BTreeMap::new();
        let durable = |dir: Inode| {
            let names = self.dirs.get(&dir).map(|dir| dir.durable.clone()).unwrap_or_default();
            Arc::new(Dir { live: BTreeMap::new(), durable: names })
        };
        for ((dir, changes), _) in self.pending.iter().zip(kept).filter(|(_, kept)| **kept) {
            let dir = dirs.entry(*dir).or_insert_with(|| durable(*dir));
            change_names(&mut Arc::make_mut(dir).durable, changes);
        }
        let mut left = BTreeMap::new();
        let mut to_visit = vec![ROOT];
        while let Some(inode) = to_visit.pop() {
            let is_clean = || !self.pending.iter().any(|(changed, _)| *changed == inode);
            let dir = match (dirs.remove(&inode), self.dirs.get(&inode)) {
                (Some(changed), _) => {
                    let Dir { durable, .. } = &*changed;
                    Arc::new(Dir { live: durable.clone(), durable: durable.clone() })
                }
                (None, Some(dir)) if is_clean() => Arc::clone(dir),
                (None, Some(dir)) => {
                    Arc::new(Dir { live: dir.durable.clone(), durable: dir.durable.clone() })
                }
                (None, None) => continue,
            };
            to_visit.extend(dir.live.values().filter(|&&to| self.dirs.contains_key(&to) && to != inode));
            left.insert(inode, dir);
        }
        left
    }

    /// Returns the world after the power cut: nothing is pending, and files without a name are gone.
    pub(super) fn cut(&self, survivors: &Survivors) -> World {
        let dirs = self.cut_names(&survivors.names);
        let named: BTreeSet<Inode> = dirs.values().flat_map(|dir| dir.live.values().copied()).collect();
        let mut files = BTreeMap::new();
        for inode in named {
            let Some(file) = self.files.get(&inode) else { continue };
            let left = match survivors.files.get(&inode) {
                Some(kept) => Arc::new(file.cut(kept)),
                None if file.is_synced() => Arc::clone(file),
                None => Arc::new(file.cut(&super::file::Kept::default())),
            };
            files.insert(inode, left);
        }
        let changed = self.changed.iter().filter(|(inode, _)| files.contains_key(inode));
        let changed = changed.map(|(&inode, &when)| (inode, when)).collect();
        World {
            files,
            dirs,
            changed,
            pending: Vec::new(),
            ..World { clock: self.clock, ..World::new(self.block_bytes) }
        }
    }

    /// Returns a fingerprint. Worlds in which every name refers to the same bytes have the same fingerprint.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash_names(ROOT, &mut hasher);
        hasher.finish()
    }

    fn hash_names(&self, dir: Inode, hasher: &mut DefaultHasher) {
        let Some(names) = self.dirs.get(&dir) else { return };
        names.live.len().hash(hasher);
        for (name, inode) in &names.live {
            name.hash(hasher);
            match self.files.get(inode) {
                Some(file) => file.fingerprint().hash(hasher),
                None => self.hash_names(*inode, hasher),
            }
        }
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
