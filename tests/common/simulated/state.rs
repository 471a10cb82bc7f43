//! The content of a simulated disk, and the operations on its names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Op;
use super::world::{Dir, Inode, ROOT, World};
use stridemap::disk::FileStat;

/// Selects the operation that fails.
pub(super) struct Fault(pub(super) Box<dyn Fn(&Op) -> bool + Send>);

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fault")
    }
}

/// The device number of a disk. It is unique in the process: otherwise files on different disks would be taken for
/// the same file.
#[derive(Debug)]
struct Device(u64);

impl Default for Device {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Device(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The content of a simulated disk, and its log.
#[derive(Debug)]
pub(super) struct State {
    device: Device,
    pub(super) world: World,
    /// `None` if operations are not logged.
    pub(super) log: Option<Vec<Op>>,
    pub(super) op_count: u64,
    pub(super) file_system_syncs: u64,
    pub(super) locks: HashMap<Inode, HashSet<(u64, bool)>>,
    pub(super) fault: Option<Fault>,
    next_number: u64,
    pub(super) splits_renames: bool,
    /// The directories that are separate file systems.
    pub(super) mounts: Vec<Inode>,
    /// The number of operations until the power is cut.
    pub(super) power: Option<u64>,
}

impl State {
    /// Returns a number that no file or directory has had.
    pub(super) fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn of(world: World) -> Self {
        let next_number = world.files.keys().chain(world.dirs.keys()).max().copied().unwrap_or_default();
        State {
            device: Device::default(),
            world,
            log: Some(Vec::new()),
            op_count: 0,
            file_system_syncs: 0,
            locks: HashMap::new(),
            fault: None,
            next_number,
            splits_renames: false,
            mounts: Vec::new(),
            power: None,
        }
    }

    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.power == Some(0) { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    pub(super) fn perform(&mut self, op: Op) -> io::Result<()> {
        self.check_power()?;
        if self.fault.as_ref().is_some_and(|fault| fault.0(&op)) {
            self.fault = None;
            return Err(io::Error::other("injected fault"));
        }
        self.world.apply(&op);
        self.op_count += 1;
        self.file_system_syncs += u64::from(op == Op::SyncAll);
        self.power = self.power.map(|left| left.saturating_sub(1));
        if let Some(log) = &mut self.log {
            log.push(op);
        }
        Ok(())
    }

    pub(super) fn names(&self, dir: Inode) -> io::Result<&BTreeMap<String, Inode>> {
        self.world.dirs.get(&dir).map(|names| &names.live).ok_or_else(|| io::ErrorKind::NotADirectory.into())
    }

    pub(super) fn find(&self, (from, path): (Inode, &Path)) -> io::Result<Inode> {
        self.check_power()?;
        let mut way = self.way_to(from);
        for component in path.components() {
            let at = way.last().copied().unwrap_or(ROOT);
            match component {
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
                    way.push(*self.names(at)?.get(name).ok_or(io::ErrorKind::NotFound)?);
                }
                Component::ParentDir => drop(way.pop()),
                _ => {}
            }
        }
        Ok(way.last().copied().unwrap_or(ROOT))
    }

    /// Returns the directories from the root to a directory.
    pub(super) fn way_to(&self, dir: Inode) -> Vec<Inode> {
        let mut way = vec![dir];
        while let Some(&(mut at)) = way.last().filter(|&&at| at != ROOT) {
            let holds = |dir: &Dir| dir.live.values().any(|&named| named == at);
            at = self.world.dirs.iter().find(|(_, dir)| holds(dir)).map_or(ROOT, |(&holder, _)| holder);
            way.push(at);
        }
        way.reverse();
        way
    }

    /// Returns the top directory of the file system that a file or directory is on.
    pub(super) fn mount_of(&self, inode: Inode) -> Inode {
        if self.mounts.is_empty() {
            return ROOT;
        }
        let way = self.way_to(inode);
        way.into_iter().rev().find(|dir| self.mounts.contains(dir)).unwrap_or(ROOT)
    }

    /// Makes a file system durable.
    pub(super) fn sync_mount(&mut self, mount: Inode) -> io::Result<()> {
        if self.mounts.is_empty() {
            return self.perform(Op::SyncAll);
        }
        let (dirs, files) = (self.world.dirs.keys(), self.world.files.keys());
        let dirs: Vec<Inode> = dirs.copied().filter(|&dir| self.mount_of(dir) == mount).collect();
        let files: Vec<Inode> = files.copied().filter(|&file| self.mount_of(file) == mount).collect();
        dirs.into_iter().try_for_each(|dir| self.perform(Op::SyncDir(dir)))?;
        files.into_iter().try_for_each(|file| self.perform(Op::Sync(file)))
    }

    pub(super) fn place(&self, (from, path): (Inode, &Path)) -> io::Result<(Inode, String)> {
        let dir = self.find((from, path.parent().unwrap_or(Path::new(""))))?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((dir, name.to_owned()))
    }

    pub(super) fn create(&mut self, path: (Inode, &Path), create: fn(Inode) -> Op) -> io::Result<Inode> {
        let (dir, name) = self.place(path)?;
        if self.find(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = self.take_number();
        self.perform(create(inode))?;
        self.perform(Op::Names { dir, changes: vec![(name, Some(inode))] })?;
        Ok(inode)
    }

    pub(super) fn rename(&mut self, from: (Inode, &Path), to: (Inode, &Path)) -> io::Result<()> {
        let inode = self.find(from)?;
        let ((from_dir, from_name), (to_dir, to_name)) = (self.place(from)?, self.place(to)?);
        if self.mount_of(from_dir) != self.mount_of(to_dir) {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        let is_split = self.splits_renames && self.world.files.contains_key(&inode);
        if from_dir == to_dir && !is_split {
            let changes = vec![(from_name, None), (to_name, Some(inode))];
            self.perform(Op::Names { dir: to_dir, changes })
        } else {
            self.perform(Op::Names { dir: to_dir, changes: vec![(to_name, Some(inode))] })?;
            self.perform(Op::Names { dir: from_dir, changes: vec![(from_name, None)] })
        }
    }

    pub(super) fn stat(&self, inode: Inode) -> FileStat {
        let links =
            self.world.dirs.values().flat_map(|names| names.live.values()).filter(|&&named| named == inode);
        FileStat {
            device: self.device.0 + (self.mount_of(inode) << 32),
            inode,
            size_bytes: self.world.files.get(&inode).map_or(0, |file| file.length_bytes()),
            link_count: links.count() as u64,
            is_regular: self.world.files.contains_key(&inode),
            mtime_ns: self.world.changed.get(&inode).copied().unwrap_or_default(),
        }
    }
}
