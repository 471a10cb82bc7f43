//! An open store: the current generation of one handle, and what the handle keeps between commits.

use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::garbage::frees_full_disk;
use super::newest_watch::NewestWatch;
use super::older::OlderManifests;
use super::store_dir::StoreDir;
use super::writer_lock::{NewestListed, WriterLock};
use super::{Generation, recover};
use crate::disk::if_test_omits_step;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{AccessOptions, ExternalOpener, LockWait, OpenStorages, Poison};

/// What a commit survives once it has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The end of the process, a system crash and a power cut: everything is synced.
    #[default]
    Full,
    /// The end of the process, including `kill -9`. No commit is synced: after a power cut the store may be damaged.
    /// The next `Full` commit or collection, by any handle, syncs every file system of the store once, which makes all
    /// earlier commits durable. The [`flush`](crate::ExclusiveGuard::flush) of a mutable tensor still syncs its
    /// elements, but not the commit that gave it its name.
    Process,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) durability: Durability,
    pub(crate) lock_wait: LockWait,
    pub(crate) access: AccessOptions,
    /// Whether each chunk of a sealed storage is verified when it is first read.
    pub(crate) verifies_reads: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            durability: Durability::Full,
            lock_wait: LockWait { timeout: Duration::from_secs(30), on_wait: None },
            access: AccessOptions::default(),
            verifies_reads: false,
        }
    }
}

/// An open store. A handle, its clones and its snapshots share one.
#[derive(Debug)]
pub(crate) struct OpenStore {
    dir: StoreDir,
    pub(crate) options: Options,
    current: RwLock<Arc<Generation>>,
    /// The number of `current`, for callers that must not wait for its lock.
    number: AtomicU64,
    pub(crate) storages: Arc<OpenStorages>,
    pub(crate) externals: ExternalOpener,
    pub(crate) poison: Poison,
    /// Whether this handle stays on its generation.
    is_fixed: bool,
    /// Whether this handle has deleted the leftovers of crashed writers.
    pub(crate) is_swept: AtomicBool,
    /// What is known about the generations before the newest. Only locked under the writers' lock.
    older: Mutex<OlderManifests>,
    /// Shared with the storages that are changed in place.
    pub(crate) newest_watch: Arc<NewestWatch>,
}

impl Deref for OpenStore {
    type Target = StoreDir;

    fn deref(&self) -> &StoreDir {
        &self.dir
    }
}

impl OpenStore {
    pub(crate) fn open(dir: StoreDir, options: Options) -> Result<Self> {
        let newest = recover::newest(&dir, None)?;
        Ok(Self::at(dir, options, newest))
    }

    /// Returns an open store whose current generation is `current`. A salvage passes a generation without content,
    /// because that on disk may be damaged.
    pub(crate) fn at(dir: StoreDir, options: Options, current: Arc<Generation>) -> Self {
        OpenStore {
            number: AtomicU64::new(current.number()),
            storages: OpenStorages::new(current.number()),
            externals: ExternalOpener::new(&dir.disk, dir.paths.root(), options.access),
            dir,
            options,
            current: RwLock::new(current),
            poison: Poison::default(),
            is_fixed: false,
            is_swept: AtomicBool::new(false),
            older: Mutex::default(),
            newest_watch: Arc::default(),
        }
    }

    /// Takes the lock that makes writers take turns.
    pub(crate) fn lock_writers(&self) -> Result<WriterLock> {
        WriterLock::take(self, self.options.lock_wait, Instant::now())
    }

    /// Returns what is known about the generations before `newest`. `names` are the names in `meta/`, if they were
    /// listed under the lock.
    pub(crate) fn older(
        &self,
        names: Option<Vec<String>>,
        newest: &Generation,
        _lock: &WriterLock,
    ) -> Result<MutexGuard<'_, OlderManifests>> {
        let mut older = self.older.lock().unwrap_or_else(PoisonError::into_inner);
        older.update(self, names, newest)?;
        Ok(older)
    }

    /// The number of this handle's current generation.
    pub(crate) fn generation_number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Returns this handle's current generation. In a forked child, returns a generation with the same number and no
    /// content: another thread of the parent may have held the lock, which then is never released.
    pub(crate) fn current(&self) -> Arc<Generation> {
        if self.check_process().is_err() {
            return Arc::new(Generation::stand_in(self.uuid, self.generation_number()));
        }
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this handle stays on its generation.
    pub(crate) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Returns the newest generation on disk, or the one that this handle stays on.
    pub(crate) fn newest(&self) -> Result<Arc<Generation>> {
        if self.is_fixed {
            self.check_process()?;
            return Ok(self.current());
        }
        self.newest_of_all()
    }

    /// Returns the newest generation on disk.
    pub(crate) fn newest_of_all(&self) -> Result<Arc<Generation>> {
        Ok(self.newest_by(false)?.0)
    }

    /// Makes this handle stay on a generation, and refuse to write.
    pub(crate) fn fixed_at(mut self, generation: Arc<Generation>) -> Self {
        let (root, number) = (self.paths.root().display(), generation.number());
        let message = match self.disk.never_changes() {
            true => format!(
                "{root}: the store is read where it is, at generation {number}, and cannot be changed there; copy it to \
                 a path, and change the copy"
            ),
            false => format!(
                "{root}: the store was opened at generation {number}, to read it; open the newest generation to write"
            ),
        };
        self.poison.set(&Error::new(ErrorKind::ReadOnly, message));
        *self.number.get_mut() = generation.number();
        self.storages = OpenStorages::new(generation.number());
        self.current = RwLock::new(generation);
        self.is_fixed = true;
        self
    }

    /// Finds the newest generation while no other writer commits. A listing during a commit may miss names that are
    /// added or removed, so that an older generation, which a reader still uses, looks newest. That is good enough to
    /// read, but not to build on.
    pub(crate) fn newest_for_certain(&self) -> Result<Arc<Generation>> {
        if_test_omits_step!("certain-newest", return self.newest());
        Ok(self.newest_listed(&self.lock_writers()?)?.0)
    }

    /// Returns the newest generation on disk, and the names in `meta/` if they had to be listed. The caller
    /// holds the writers' lock, so no other writer commits meanwhile.
    pub(crate) fn newest_listed(&self, lock: &WriterLock) -> Result<NewestListed> {
        let mut listed = lock.listed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*listed {
            Some(listed) => Ok(listed.clone()),
            None => Ok(listed.insert(self.newest_by(true)?).clone()),
        }
    }

    /// A commit, which holds the writers' lock, needs the names if they are few: there are older generations among them.
    fn newest_by(&self, has_lock: bool) -> Result<NewestListed> {
        self.check_process()?;
        let mut known = self.newest_watch.lock();
        let current = self.current();
        if (!has_lock || known.is_long()) && known.is_newest(current.number()) {
            current.check_named(&*self.disk)?;
            return Ok((current, None));
        }
        let list = if has_lock { recover::list } else { recover::settled_list };
        let (newest, names) = recover::newest_listed(self, Some(current), list)?;
        known.note_listing(self, newest.number(), names.len());
        Ok((newest, Some(names)))
    }

    /// Records that this handle has published a generation under the writers' lock.
    pub(crate) fn note_published(&self, generation: u64, lock: &WriterLock) {
        *lock.listed.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.newest_watch.lock().note_published(generation);
    }

    /// Moves this handle to a generation, unless its own is as new or newer. Returns whether it moved.
    pub(crate) fn install(&self, generation: Arc<Generation>) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let moves = current.number() < generation.number();
        if moves {
            self.number.store(generation.number(), Ordering::Release);
            *current = Arc::clone(&generation);
        }
        drop(current);
        if moves {
            self.storages.move_to(generation.number(), |id| generation.storage(id).ok()?);
        }
        moves
    }

    /// Whether commits are synced.
    pub(crate) fn is_durable(&self) -> bool {
        self.options.durability == Durability::Full
    }

    /// Makes the names in a directory durable, if commits are synced.
    pub(crate) fn sync_dir(&self, dir: &Path) -> Result<()> {
        if self.is_durable() {
            self.disk.sync_dir(dir).map_err(|e| e.at(dir))?;
        }
        Ok(())
    }

    /// Refuses to write once a sync has failed.
    pub(crate) fn check_poison(&self) -> Result<()> {
        self.poison.check()
    }

    /// Returns the result of a write, and records a failure: a failed sync poisons the handle, and any failure may
    /// have left files behind.
    pub(crate) fn record_failure<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.is_swept.store(false, Ordering::Relaxed);
            frees_full_disk(self, e);
            if e.is_failed_sync() {
                self.poison.set(e);
            }
        }
        result
    }
}
