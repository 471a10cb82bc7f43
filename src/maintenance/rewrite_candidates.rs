//! The storages to rewrite, in groups that bound memory and disk space.

use std::collections::{BTreeMap, VecDeque};

use super::storage_tensors::StorageTensors;
use crate::error::Result;
use crate::generation::Generation;

/// The limits of one commit: how many bytes it copies and how many headers it changes, unless one storage exceeds
/// them. A commit frees the old files, so a rewrite needs only this much free space at a time.
pub(super) const COMMIT_BYTES: u64 = 64 << 20;
const COMMIT_TENSORS: u64 = 1 << 20;

/// How many files one commit keeps open. Until the commit, a storage that is copied to one of its own has three: the old
/// bytes under their growth lock, the new bytes, and their digests. One that shares a storage has only the first. A
/// process may open 1024 files by default, and has others open.
const COMMIT_FILES: usize = 192;
const OWN_FILES: usize = 3;

/// How many names are kept in memory, unless one storage has more.
const KEPT_NAMES: u64 = 1 << 20;

/// A storage to rewrite.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: u64,
    pub(super) length_bytes: u64,
    pub(super) new_bytes: u64,
    pub(super) tensor_count: u64,
    /// The first name of a tensor on it, if it is to share a storage with others.
    pub(super) packed_by: Option<String>,
    /// Whether a rewrite has made it: it holds the small storages of one commit.
    pub(super) is_pack: bool,
    /// The names of its tensors; `None` until it is about to be rewritten.
    pub(super) names: Option<Vec<String>>,
}

impl Candidate {
    pub(super) fn of(storage: &StorageTensors, new_bytes: u64, is_packed: bool) -> Self {
        let first_name = storage.tensors.keys().next().filter(|_| is_packed);
        Candidate {
            id: storage.id,
            length_bytes: storage.record.length_bytes,
            new_bytes,
            tensor_count: storage.record.tensor_count,
            packed_by: first_name.cloned(),
            is_pack: false,
            names: None,
        }
    }

    pub(super) fn gain_bytes(&self) -> u64 {
        self.length_bytes.saturating_sub(self.new_bytes)
    }

    fn file_count(&self) -> usize {
        if self.packed_by.is_some() { 1 } else { OWN_FILES }
    }
}

/// The remaining storages, in the order in which they are rewritten.
#[derive(Debug)]
pub(super) struct Candidates {
    rest: VecDeque<Candidate>,
}

impl Candidates {
    /// Smaller storages come first: on a full disk they make room for the others. Those that will share storages are in
    /// the order of their names, which are often read in this order.
    pub(super) fn new(mut candidates: Vec<Candidate>) -> Self {
        let key = |candidate: &Candidate| (candidate.packed_by.is_none(), candidate.new_bytes, candidate.id);
        candidates.sort_unstable_by(|a, b| match (&a.packed_by, &b.packed_by) {
            (Some(a_name), Some(b_name)) => (a_name, a.id).cmp(&(b_name, b.id)),
            _ => key(a).cmp(&key(b)),
        });
        Candidates { rest: candidates.into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next storages, with their names: at least one if any is left, and as many as one commit may hold.
    pub(super) fn next_group(&mut self, newest: &Generation) -> Result<VecDeque<Candidate>> {
        if self.rest.front().is_some_and(|next| next.names.is_none()) {
            self.find_names(newest)?;
        }
        let (mut group, mut size_bytes, mut tensor_count, mut file_count) = (VecDeque::new(), 0u64, 0u64, 0);
        while let Some(next) = self.rest.front().filter(|next| next.names.is_some()) {
            size_bytes = size_bytes.saturating_add(next.new_bytes);
            tensor_count = tensor_count.saturating_add(next.tensor_count);
            file_count += next.file_count();
            let is_full =
                size_bytes > COMMIT_BYTES || tensor_count > COMMIT_TENSORS || file_count > COMMIT_FILES;
            if is_full && !group.is_empty() {
                break;
            }
            group.extend(self.rest.pop_front());
        }
        Ok(group)
    }

    /// Puts the rest of a group back at the front.
    pub(super) fn put_back(&mut self, mut group: VecDeque<Candidate>) {
        group.append(&mut self.rest);
        self.rest = group;
    }

    /// Finds the names on the next storages in one scan. It covers as many storages as memory allows, so that not
    /// every commit needs a scan.
    fn find_names(&mut self, newest: &Generation) -> Result<()> {
        let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        let mut count = 0u64;
        for candidate in &self.rest {
            count = count.saturating_add(candidate.tensor_count);
            if count > KEPT_NAMES && !found.is_empty() {
                break;
            }
            found.insert(candidate.id, Vec::new());
        }
        for entry in newest.tensors("")? {
            let (name, record) = entry?;
            if let Some(names) = found.get_mut(&record.storage_id) {
                names.push(name);
            }
        }
        for candidate in &mut self.rest {
            let Some(names) = found.remove(&candidate.id) else { break };
            candidate.names = Some(names);
        }
        Ok(())
    }
}
