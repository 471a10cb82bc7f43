//! Pull: a local store becomes the same as the remote.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use stridemap::replica::{GenerationId, ReceiveOptions};
use stridemap::{Error, ErrorKind, Result, Snapshot, Store, StoreOptions};

use crate::Remote;
use crate::conflict;
use crate::ended::{Ended, repeat};
use crate::files::RemoteFiles;
use crate::index::Index;
use crate::progress::{Progress, Tally};
use crate::record::{Common, Record};
use crate::remote::Published;

/// The result of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// The generation that the local store has now.
    pub generation: u64,
    /// The generation that it had before, if it existed.
    pub previous: Option<u64>,
    /// The bytes of elements, tables and manifests that were received.
    pub received_bytes: u64,
    /// The number of storages that were new or had grown.
    pub storage_count: u64,
}

/// What a pull starts from.
struct Start {
    published: Published,
    files: Arc<RemoteFiles>,
    snapshot: Snapshot,
    id: GenerationId,
    /// The local store, and its newest generation.
    local: Option<(Store, GenerationId)>,
    record: Option<Record>,
}

impl Remote {
    /// Makes the store at `path` the same as the newest generation of the remote, with its tags. If nothing is at the
    /// path, this makes a new store there. Otherwise it must be a store that was pulled from this remote or pushed to
    /// it, without commits of its own since.
    ///
    /// Only what the store lacks is received. Its digests are compared. One commit publishes all of it, so readers of
    /// the local store see the old generation or the new one. If a pull to an existing store was killed, another one goes on
    /// where it ended. The first pull to a path begins anew. If the elements of a mutable or live storage have changed in the
    /// remote since the last push or pull, they replace those of the local store, also if these were changed without a
    /// commit. So they do if the generation of the last push or pull was pruned.
    ///
    /// # Errors
    /// `NotFound` if the remote does not exist; `Conflict` if the local store has commits of its own, or is a different
    /// store, or if the remote was made anew from a state without the last generation that both had; `Busy` if another push or pull between the two is running; `Corrupt` for a damaged remote; `Io`; those of a
    /// commit; errors of `progress`. After each of these except `CommitUnknown`, names, sealed elements and tags
    /// of the local store are as they were. Elements of mutable and live tensors may be those of the remote already. If only
    /// the record of the pull cannot be written after the commit, the next pull finds that the store has the generation.
    pub fn pull(&self, path: &Path, progress: &Progress<'_>) -> Result<Pulled> {
        self.pull_with(path, StoreOptions::new(), progress)
    }

    /// Like [`pull`](Self::pull), with options for the local store.
    ///
    /// # Errors
    /// Those of [`pull`](Self::pull).
    pub fn pull_with(&self, path: &Path, options: StoreOptions, progress: &Progress<'_>) -> Result<Pulled> {
        repeat(|| self.pull_once(path, &options, progress))
    }

    pub(crate) fn pull_once(
        &self,
        path: &Path,
        options: &StoreOptions,
        progress: &Progress<'_>,
    ) -> Result<Pulled, Ended> {
        self.check_local(path)?;
        let start = self.start_pull(path, options.clone(), Record::open)?;
        let pulled = self.pull_from(path, options, start, progress);
        pulled.map_err(|e| e.context(&format!("pull {} to {}", self.location(), path.display())))
    }

    /// Returns what a [pull](Self::pull) would receive, without receiving it. Nothing is written anywhere.
    ///
    /// # Errors
    /// Those of [`pull`](Self::pull).
    pub fn plan_pull(&self, path: &Path) -> Result<Pulled> {
        self.check_local(path)?;
        let start = self.start_pull(path, StoreOptions::new(), Record::for_plan)?;
        let previous = start.local.as_ref().map(|(_, id)| id.number);
        let mut planned = Pulled { generation: start.id.number, previous, ..Pulled::default() };
        if !start.is_current() {
            planned.received_bytes = missing_bytes(&start, self.index_before(&start)?.as_mut())?;
        }
        Ok(planned)
    }

    fn start_pull(
        &self,
        path: &Path,
        options: StoreOptions,
        open_record: fn(&Path, &str) -> Result<Record>,
    ) -> Result<Start> {
        let local = match options.open(path) {
            Ok(store) => Some(store),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let published = self.published()?.ok_or_else(|| self.not_found())?;
        let id = published.id()?;
        let files = self.files(&published.manifest);
        let snapshot = StoreOptions::new().open_files(files.clone(), self.location())?.snapshot();
        let Some(store) = local else {
            return Ok(Start { published, files, snapshot, id, local: None, record: None });
        };
        let mut record = open_record(store.path(), self.location())?;
        let local_id = store.latest()?.id()?;
        self.check_pull(&store, local_id, &published, id, &mut record)?;
        Ok(Start { published, files, snapshot, id, local: Some((store, local_id)), record: Some(record) })
    }

    /// Refuses a local store that is a different one, or has commits that the remote does not have.
    fn check_pull(
        &self,
        store: &Store,
        local: GenerationId,
        published: &Published,
        remote: GenerationId,
        record: &mut Record,
    ) -> Result<()> {
        let refused = |why: &str| {
            let (path, location) = (store.path().display(), self.location());
            let message = format!("pull {location} to {path}: {why}");
            Err(Error::new(ErrorKind::Conflict, message))
        };
        if store.uuid() != uuid::Uuid::from_bytes(published.manifest.uuid).to_string() {
            return refused("the path has a different store; choose a path at which nothing is");
        }
        record.settle_begun(&published.head.bytes, local)?;
        if local == remote {
            return Ok(());
        }
        let state = &record.state;
        let last = state.common.as_ref().and_then(Common::id);
        match last {
            Some(last) if last == local && remote.number > local.number => {
                let head = state.common.as_ref().and_then(Common::head);
                match self.follows(published, last, head)? {
                    true => Ok(()),
                    false => refused(&conflict::forked(local, remote, Some(last))),
                }
            }
            Some(last) if last.number < local.number && last == remote => {
                let own = conflict::own(last, local);
                let what = format!("the store has commits of its own since its last push or pull, {own}");
                match state.common.as_ref().is_some_and(|common| common.is_at(&published.head.bytes)) {
                    true => refused(&format!("{what}, and the remote has nothing newer; push it")),
                    false => refused(&conflict::forked(local, remote, Some(last))),
                }
            }
            Some(last) if last == local || last.number < local.number => {
                refused(&conflict::forked(local, remote, Some(last)))
            }
            // The first pull was killed after it had made the store, and before it recorded that.
            None if self.has_had_generation(published, local)? => Ok(()),
            _ => refused(
                "the store was not pushed to this remote or pulled from it; choose a path at which nothing is",
            ),
        }
    }

    fn pull_from(
        &self,
        path: &Path,
        options: &StoreOptions,
        start: Start,
        progress: &Progress<'_>,
    ) -> Result<Pulled, Ended> {
        let common = Common::new(&start.published.head.bytes, start.id);
        let previous = start.local.as_ref().map(|(_, id)| id.number);
        let is_same = start.is_same();
        if start.is_current() {
            return Ok(Pulled { generation: start.id.number, previous, ..Pulled::default() });
        }
        let mut before = self.index_before(&start)?;
        let tally = Tally::new(progress, missing_bytes(&start, before.as_mut())?);
        let unchanged =
            before.map_or(Ok(HashSet::new()), |mut before| start.files.unchanged_since(&mut before))?;
        let add = |bytes| tally.add(bytes);
        let receive = ReceiveOptions {
            jobs: self.client.jobs(),
            progress: &add,
            is_unchanged: &|id| unchanged.contains(&id),
        };
        let (received, mut record) = match (start.local, start.record) {
            (Some((store, local)), Some(mut record)) => {
                if !is_same {
                    record.state.begun_pull = Some(common.clone());
                    record.save()?;
                }
                let received = store.receive(&start.snapshot, Some(local), &receive);
                (received.map_err(Ended::by_others)?, record)
            }
            _ => {
                let created = options.create_replica(path, &start.snapshot, &receive);
                let (store, received) = created.map_err(|e| match e.kind() {
                    // Another process may have pulled to the same path.
                    ErrorKind::AlreadyExists => Ended::Overtaken(e),
                    _ => Ended::by_others(e),
                })?;
                (received, Record::open(store.path(), self.location())?)
            }
        };
        tally.finish();
        if record.state.common.as_ref() != Some(&common) {
            record.settle(common)?;
        }
        Ok(Pulled {
            generation: received.generation,
            previous,
            received_bytes: received.received_bytes,
            storage_count: received.storage_count,
        })
    }

    /// Returns the index that the remote had after the last push or pull between the two. `None` if there was none, or if
    /// it was pruned or damaged since.
    fn index_before(&self, start: &Start) -> Result<Option<Index>> {
        let common = start.record.as_ref().and_then(|record| record.state.common.as_ref());
        let Some(head) = common.and_then(Common::head) else { return Ok(None) };
        let read = || {
            let Some(manifest) = self.manifest_of(self.decode_head(&head)?)? else { return Ok(None) };
            let mut index = Index::new(&manifest.pages);
            drop(index.all(&|segments| self.fetch_pages(segments))?);
            Ok(Some(index))
        };
        read().or_else(|e: Error| if e.kind() == ErrorKind::Corrupt { Ok(None) } else { Err(e) })
    }
}

/// Returns how many bytes the local store lacks.
fn missing_bytes(start: &Start, before: Option<&mut Index>) -> Result<u64> {
    match before {
        Some(before) => start.files.bytes_since(before),
        None => start.files.total_bytes(),
    }
}

impl Start {
    fn is_same(&self) -> bool {
        self.local.as_ref().is_some_and(|(_, local)| *local == self.id)
    }

    /// Whether the local store has all that the remote has, elements that change in place too.
    fn is_current(&self) -> bool {
        let common = self.record.as_ref().and_then(|record| record.state.common.as_ref());
        self.is_same() && common.is_some_and(|common| common.is_at(&self.published.head.bytes))
    }
}
