//! The files that no generation needs.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use stridemap_format::{Digest, StorageKind, full_chunk_count};

use crate::commit::recover::{manifest_numbers, pin};
use crate::commit::stats::unfinished_by;
use crate::commit::{Generation, History, holders, pins};
use crate::disk::{STAGE_PREFIX, number_in};
use crate::error::{Error, ErrorKind, Result, one_line};

/// A file of a store's directories, or the end of one, that no generation needs and nobody is at work on. It is no damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Orphan {
    /// The file.
    pub path: PathBuf,
    /// How many bytes of it nobody needs.
    pub size_bytes: u64,
    /// What it is.
    pub kind: OrphanKind,
}

/// What a file is that nobody needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrphanKind {
    /// What a writer that is gone had not finished.
    Unfinished,
    /// An older manifest that nobody is on, a table that no manifest stands on, or a storage without a name.
    Unneeded,
    /// The end of a storage's file, past the newest record's length.
    Leftover,
    /// A file of a name that the store does not give.
    Foreign,
}

impl OrphanKind {
    /// What deletes it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            OrphanKind::Unfinished => "an unfinished file of a writer that is gone; gc deletes it",
            OrphanKind::Unneeded => "no generation needs it; gc deletes it",
            OrphanKind::Leftover => {
                "bytes behind the end of the storage; gc cuts them off, or the next append"
            }
            OrphanKind::Foreign => "not a file of the store; nothing deletes it",
        }
    }
}

impl fmt::Display for Orphan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Orphan { path, size_bytes, kind } = self;
        f.write_str(&one_line(&format!("{}: {size_bytes} bytes: {}", path.display(), kind.remedy())))
    }
}

/// Looks at the files, and then at the generations: what came meanwhile is not among the files, and what a generation took
/// meanwhile it says.
pub(super) fn orphans(history: &History) -> Result<Vec<Orphan>> {
    let mut files = Vec::new();
    for dir in [history.paths.meta_dir(), history.paths.storages_dir()] {
        let names = history.disk.list(&dir).map_err(|e| Error::io("list", &dir, e))?;
        files.extend(names.into_iter().map(|name| (dir.join(&name), name)));
    }
    let is_writing = !holders(history, &history.paths.lock()).is_empty();
    let needs = Needs::of(history)?;
    let mut orphans = Vec::new();
    for (path, name) in files {
        let Some((kind, from_byte)) = needs.orphan(history, &path, &name, is_writing) else { continue };
        match history.disk.stat(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            stat => {
                let size_bytes = stat.map_or(0, |stat| stat.size_bytes.saturating_sub(from_byte));
                orphans.push(Orphan { path, size_bytes, kind });
            }
        }
    }
    orphans.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(orphans)
}

/// What the newest generation and those that somebody is on need.
#[derive(Debug, Default)]
pub(in crate::commit) struct Needs {
    newest: u64,
    next_storage_id: u64,
    pub(in crate::commit) generations: Vec<u64>,
    pub(in crate::commit) tables: Vec<u64>,
    /// How many bytes of a sealed storage; none of one that is changed in place.
    pub(in crate::commit) storages: BTreeMap<u64, Option<u64>>,
    /// Whether somebody is on a generation that cannot be read, and may need anything.
    is_unclear: bool,
}

impl Needs {
    fn of(history: &History) -> Result<Self> {
        let newest = history.newest()?;
        let manifest = newest.manifest();
        let mut needs =
            Needs { newest: newest.number(), next_storage_id: manifest.next_storage_id, ..Needs::default() };
        needs.add(&newest)?;
        for held in pins(history, &newest)? {
            match pin(&*history.disk, &history.paths, history.uuid, held.generation) {
                Ok(Some(pinned)) => needs.add(&pinned)?,
                Ok(None) => {}
                Err(e) if e.kind() == ErrorKind::Corrupt => {
                    needs.generations.push(held.generation);
                    needs.is_unclear = true;
                }
                Err(e) => return Err(e),
            }
        }
        // One that was published since is none of ours to call unneeded.
        let numbers = manifest_numbers(&*history.disk, &history.paths)?;
        needs.generations.extend(numbers.into_iter().filter(|&number| number > needs.newest));
        Ok(needs)
    }

    pub(in crate::commit) fn add(&mut self, generation: &Generation) -> Result<()> {
        self.generations.push(generation.number());
        self.tables.extend(generation.manifest().table.map(|table| table.generation));
        for entry in generation.storages() {
            let (id, record) = match entry {
                // It is damaged; what else it says is not known.
                Err(e) if e.kind() == ErrorKind::Corrupt => {
                    self.is_unclear = true;
                    continue;
                }
                entry => entry?,
            };
            let sealed_bytes = match record.kind {
                StorageKind::External(_) => continue,
                StorageKind::Sealed(_) => Some(record.length_bytes),
                StorageKind::Mutable | StorageKind::Live { .. } => None,
            };
            let known = self.storages.entry(id).or_insert(sealed_bytes);
            *known = known.zip(sealed_bytes).map(|(known, bytes)| known.max(bytes));
        }
        Ok(())
    }

    /// Whether something may be needed that is not known.
    pub(in crate::commit) fn is_unclear(&self) -> bool {
        self.is_unclear
    }

    /// What a file is, if it is an orphan, and from which byte on.
    fn orphan(
        &self,
        history: &History,
        path: &Path,
        name: &str,
        is_writing: bool,
    ) -> Option<(OrphanKind, u64)> {
        if name.starts_with(STAGE_PREFIX) {
            let is_at_work = is_writing || unfinished_by(history, path).is_some();
            return (!is_at_work).then_some((OrphanKind::Unfinished, 0));
        }
        let unneeded = |is_unneeded: bool| is_unneeded.then_some((OrphanKind::Unneeded, 0));
        if let Some(number) = number_in(name, "man") {
            return unneeded(!self.generations.contains(&number));
        }
        if let Some(number) = number_in(name, "tab") {
            let may_come = is_writing && number > self.newest;
            return unneeded(!may_come && !self.is_unclear && !self.tables.contains(&number));
        }
        let (bin, sum) = (number_in(name, "bin"), number_in(name, "sum"));
        let Some(id) = bin.or(sum) else { return Some((OrphanKind::Foreign, 0)) };
        let length_bytes = match self.storages.get(&id) {
            None => {
                let may_come = is_writing && id >= self.next_storage_id;
                return unneeded(!may_come && !self.is_unclear);
            }
            Some(None) => return unneeded(sum.is_some() && !self.is_unclear),
            Some(Some(length_bytes)) => *length_bytes,
        };
        let needed_bytes = match sum {
            Some(_) => full_chunk_count(length_bytes) * size_of::<Digest>() as u64,
            None => length_bytes,
        };
        // Who appends has the lock of the storage.
        let is_growing = is_writing || !holders(history, &history.paths.storage(id)).is_empty();
        let is_longer = history.disk.stat(path).is_ok_and(|stat| stat.size_bytes > needed_bytes);
        (is_longer && !is_growing).then_some((OrphanKind::Leftover, needed_bytes))
    }
}
