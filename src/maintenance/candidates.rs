use std::collections::{BTreeMap, VecDeque};

use crate::error::Result;
use crate::generation::Generation;

/// How many bytes are copied for one commit, unless one storage has more; and how many headers changed. A commit gives the
/// old files back, so of a disk that is nearly full no more than this is needed at a time.
const COMMIT_BYTES: u64 = 64 << 20;
const COMMIT_TENSORS: u64 = 1 << 20;

/// How many storages are copied for one commit. Until it is made each has three files open: the old bytes under their
/// growth lock, the new ones, and their digests. A process has 1024 by default, and others to open.
const COMMIT_STORAGES: usize = 64;

/// How many names are remembered, unless one storage has more.
const KEPT_NAMES: u64 = 1 << 20;

/// A storage that is worth writing again.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: u64,
    pub(super) length_bytes: u64,
    pub(super) new_bytes: u64,
    pub(super) tensor_count: u64,
    /// The names on it; none until its turn is near.
    pub(super) names: Option<Vec<String>>,
}

impl Candidate {
    pub(super) fn gain_bytes(&self) -> u64 {
        self.length_bytes.saturating_sub(self.new_bytes)
    }
}

/// The storages that are left, in the order in which they are written again.
#[derive(Debug)]
pub(super) struct Candidates {
    rest: VecDeque<Candidate>,
}

impl Candidates {
    /// Smaller ones first: on a full disk they make room for the others.
    pub(super) fn new(mut candidates: Vec<Candidate>) -> Self {
        candidates.sort_unstable_by_key(|candidate| (candidate.new_bytes, candidate.id));
        Candidates { rest: candidates.into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes at least one, if one is left, and then as many as go into one commit; with their names.
    pub(super) fn next_group(&mut self, newest: &Generation) -> Result<VecDeque<Candidate>> {
        if self.rest.front().is_some_and(|next| next.names.is_none()) {
            self.find_names(newest)?;
        }
        let (mut group, mut size_bytes, mut tensor_count) = (VecDeque::new(), 0u64, 0u64);
        while let Some(next) = self.rest.front().filter(|next| next.names.is_some()) {
            size_bytes = size_bytes.saturating_add(next.new_bytes);
            tensor_count = tensor_count.saturating_add(next.tensor_count);
            let is_full =
                size_bytes > COMMIT_BYTES || tensor_count > COMMIT_TENSORS || group.len() == COMMIT_STORAGES;
            if is_full && !group.is_empty() {
                break;
            }
            group.extend(self.rest.pop_front());
        }
        Ok(group)
    }

    /// Those of a group that are still to be written, first of all.
    pub(super) fn put_back(&mut self, mut group: VecDeque<Candidate>) {
        group.append(&mut self.rest);
        self.rest = group;
    }

    /// Finds the names on the next storages by one scan: as many as are remembered, so that what others have is not gone
    /// through again for every commit.
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
