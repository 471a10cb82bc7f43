//! Push: the newest generation of a store becomes that of a remote.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use bytes::Bytes;
use stridemap::replica::{GenerationId, ReplicaFiles};
use stridemap::{Error, ErrorKind, Result, Snapshot, Store};
use stridemap_format::remote::{
    Head, ObjectName, Page, Previous, RemoteManifest, Segment, digests_length_bytes, manifest_path,
};

use crate::Remote;
use crate::client::{Object, Put, Version};
use crate::conflict::{self, OTHER_ELEMENTS, WAYS_OUT};
use crate::ended::{Ended, repeat};
use crate::index::Index;
use crate::packing::Packing;
use crate::progress::{Progress, Tally};
use crate::put_object::{MAX_PACK_BYTES, Stored};
use crate::record::{Common, Record};
use crate::remote::{MAX_HEAD_BYTES, Published};
use crate::upload::Uploads;

/// The result of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// The generation that the remote has now.
    pub generation: u64,
    /// The generation that it had before, if it had one.
    pub previous: Option<u64>,
    /// The bytes of storages, tables and manifests that the remote lacked.
    pub changed_bytes: u64,
    /// The bytes of all objects that were sent: these, digests of their blocks, the index, the remote manifest and HEAD.
    pub sent_bytes: u64,
    /// The number of objects that were sent.
    pub object_count: u64,
}

/// What a push starts from.
struct Start {
    snapshot: Snapshot,
    id: GenerationId,
    /// What the remote has.
    published: Option<Published>,
    /// Whether that is what the store has.
    is_same: bool,
}

impl Remote {
    /// Makes the newest generation of a store, with its tags and what they keep, the newest of the remote. Only what the
    /// remote lacks is sent, and it appears there at once, or not at all.
    ///
    /// The first push to a URL makes the remote. After that, the remote must have the generation that this store pushed or
    /// pulled last. Elements of mutable and live storages are sent as they are at that moment. A push that was killed is
    /// repeated by calling this again, which does not send objects again that were finished within the last hour.
    ///
    /// # Errors
    /// `Conflict` if someone else pushed since, also if only elements that change in place, if the remote has a different
    /// store, or if other processes go on deleting what this needs; `NotAllowed` for external storages,
    /// and for a URL that cannot be written; `Busy` if another push or pull between the two is running; `Corrupt` for a
    /// damaged remote; `Io`; errors of `progress`. After each of these the remote is as it was for readers, except in two
    /// cases: the answer to the request that publishes the generation was lost, and the error says that the generation may have
    /// been published; or it was published, and the record of that in the store cannot be written. Another push finds out.
    pub fn push(&self, store: &Store, progress: &Progress<'_>) -> Result<Pushed> {
        let mut record = Record::open(store.path(), self.location())?;
        repeat(|| self.push_once(store, &mut record, progress))
    }

    /// Returns what a [push](Self::push) would do, without doing it. Nothing is written anywhere. The bytes sent are at least
    /// those stated.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn plan_push(&self, store: &Store) -> Result<Pushed> {
        let mut record = Record::for_plan(store.path(), self.location())?;
        repeat(|| self.push_once(store, &mut record, &|_| Ok(())))
    }

    fn push_once(
        &self,
        store: &Store,
        record: &mut Record,
        progress: &Progress<'_>,
    ) -> Result<Pushed, Ended> {
        let start = self.start_push(store, record)?;
        let pushed = self.push_from(store, start, record, progress);
        pushed.map_err(|e| e.context(&format!("push {} to {}", store.path().display(), self.location())))
    }

    /// Decides whether the store may be pushed.
    fn start_push(&self, store: &Store, record: &mut Record) -> Result<Start> {
        if self.client.is_read_only() {
            let message = format!(
                "push {} to {}: a remote behind http or https can only be read; use the URL of its bucket or directory",
                store.path().display(),
                self.location()
            );
            return Err(Error::new(ErrorKind::NotAllowed, message));
        }
        let snapshot = store.latest()?;
        let id = snapshot.id()?;
        let Some(head) = self.client.get("HEAD", MAX_HEAD_BYTES)? else {
            return Ok(Start { snapshot, id, published: None, is_same: false });
        };
        let remote_head = self.decode_head(&head.bytes)?;
        let uuid = snapshot_uuid(store)?;
        if remote_head.uuid != uuid {
            let message = format!(
                "push {} to {}: the remote has a different store; push this one to another URL",
                store.path().display(),
                self.location()
            );
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        record.settle_begun(&head.bytes, id)?;
        let common = record.state.common.clone().filter(|common| common.is_at(&head.bytes));
        let common_id = common.as_ref().and_then(Common::id);
        let published = self.published_by(head)?;
        let is_ancestor = match common_id {
            Some(common) => common.number < id.number || common == id,
            None => self.is_ancestor(store, &snapshot, id, &published)?,
        };
        if !is_ancestor {
            let last = record.state.common.as_ref().and_then(Common::id);
            return Err(self.forked(store, published.id()?, id, last));
        }
        let is_same = published.manifest.generation == id.number;
        Ok(Start { snapshot, id, published: Some(published), is_same })
    }

    /// Whether the generation of the remote is this one, or one that the store still has.
    fn is_ancestor(
        &self,
        store: &Store,
        snapshot: &Snapshot,
        id: GenerationId,
        published: &Published,
    ) -> Result<bool> {
        let remote_id = published.id()?;
        if remote_id.number == snapshot.generation() {
            return Ok(remote_id == id);
        }
        match store.at(remote_id.number) {
            Ok(earlier) => Ok(earlier.id()? == remote_id),
            Err(e) if e.kind() == ErrorKind::Conflict => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn forked(
        &self,
        store: &Store,
        remote: GenerationId,
        id: GenerationId,
        last: Option<GenerationId>,
    ) -> Error {
        let why = match last == Some(id) && remote.number > id.number {
            true => {
                let (remote, local) = (remote.number, id.number);
                format!(
                    "the remote has generation {remote}, and this store, at generation {local}, has nothing newer; pull"
                )
            }
            false => conflict::forked(id, remote, last),
        };
        let message = format!("push {} to {}: {why}", store.path().display(), self.location());
        Error::new(ErrorKind::Conflict, message)
    }

    fn push_from(
        &self,
        store: &Store,
        start: Start,
        record: &mut Record,
        progress: &Progress<'_>,
    ) -> Result<Pushed, Ended> {
        let Start { snapshot, id, published, is_same } = start;
        let since = published.as_ref().map(|published| published.manifest.manifest.as_slice());
        let replica = snapshot.replica_files(since).map_err(Ended::by_others)?;
        let mut index = Index::new(published.as_ref().map_or(&[][..], |published| &published.manifest.pages));
        let fetch = |segments: &[Segment]| self.fetch_pages(segments);
        let mut replaced = BTreeSet::new();
        remove_unneeded(&mut index, &replica, &mut replaced, &fetch)?;
        let mut uploads = Uploads::new(self, &snapshot, record.state.has_unfinished_push);
        for (&key, needed) in &replica.needed {
            uploads.add(key, needed, index.get(key, &fetch)?).map_err(Ended::by_others)?;
        }
        let previous = published.as_ref().map(|published| published.manifest.generation);
        let mut pushed = Pushed { generation: id.number, previous, ..Pushed::default() };
        if is_same && uploads.is_empty() {
            if let Some(published) = &published {
                let common = Common::new(&published.head.bytes, id);
                if record.state.common.as_ref() != Some(&common) {
                    record.settle(common)?;
                }
            }
            return Ok(pushed);
        }
        if let (Some(published), Some(common)) = (&published, &record.state.common)
            && !common.is_at(&published.head.bytes)
            && (is_same || uploads.has_in_place() && common.id() == Some(published.id()?))
        {
            let ways_out = match is_same {
                true => {
                    "a pull brings them, and replaces those of this store; to keep these, push this store to another URL"
                }
                false => WAYS_OUT,
            };
            let message = format!("{OTHER_ELEMENTS}; {ways_out}");
            return Err(Error::new(ErrorKind::Conflict, message).into());
        }
        if published.is_none() {
            self.claim(&replica.format, record.is_for_plan())?;
        }
        if record.is_for_plan() {
            pushed.changed_bytes = uploads.total_bytes() + replica.manifest.len() as u64;
            return Ok(pushed);
        }
        let tally = Tally::new(progress, uploads.total_bytes());
        if !uploads.is_empty() && !record.state.has_unfinished_push {
            record.state.has_unfinished_push = true;
            record.save()?;
        }
        let changed = uploads.run(&tally)?;
        pushed.changed_bytes = changed.changed_bytes + replica.manifest.len() as u64;
        pushed.sent_bytes = changed.sent_bytes;
        pushed.object_count = changed.object_count;
        let mut reused = changed.reused;
        for (key, segments) in changed.files {
            let kept: BTreeSet<ObjectName> = segments.iter().map(|segment| segment.object).collect();
            let before = index.set(key, Some(segments), &fetch)?;
            replaced
                .extend(before.iter().map(|segment| segment.object).filter(|object| !kept.contains(object)));
        }
        replaced.extend(index.replaced_pages());
        let pages = index.finish(|pages| {
            let mut segments = Vec::new();
            for pack in packs_of(&pages) {
                let (placed, stored) = self.put_pages(pack)?;
                pushed.sent_bytes += stored.sent_bytes;
                pushed.object_count += stored.object_count;
                reused.extend(stored.reused());
                segments.extend(placed);
            }
            Ok(segments)
        })?;
        Uploads::check_reused(self, &reused).map_err(Ended::by_others)?;
        self.publish(store, (id, replica), published, pages, replaced, (record, &mut pushed))?;
        Ok(pushed)
    }

    /// Puts the remote manifest, and makes HEAD name it.
    fn publish(
        &self,
        store: &Store,
        (id, replica): (GenerationId, ReplicaFiles),
        published: Option<Published>,
        pages: Vec<Page>,
        replaced: BTreeSet<ObjectName>,
        (record, pushed): (&mut Record, &mut Pushed),
    ) -> Result<()> {
        let uuid = snapshot_uuid(store)?;
        let previous = published.as_ref().map(|published| Previous {
            generation: published.head_record.generation,
            digest: published.head_record.manifest,
        });
        let manifest = RemoteManifest {
            uuid,
            generation: id.number,
            nonce: uuid::Uuid::new_v4().into_bytes(),
            previous,
            pages,
            replaced: replaced.into_iter().collect(),
            manifest: replica.manifest,
        };
        let encoded = manifest.encode().map_err(|e| Error::refused("write a remote manifest", e))?;
        let digest = *blake3::hash(&encoded).as_bytes();
        let manifest_length_bytes = encoded.len() as u64;
        pushed.sent_bytes += manifest_length_bytes;
        self.client.put(&manifest_path(id.number, &digest), Bytes::from(encoded))?;
        pushed.object_count += 1;
        let head = Head { uuid, generation: id.number, manifest: digest, manifest_length_bytes };
        let head = Bytes::from(head.encode().map_err(|e| Error::refused("write HEAD", e))?);
        let common = Common::new(&head, id);
        record.state.begun_push = Some(common.clone());
        record.save()?;
        pushed.sent_bytes += head.len() as u64;
        pushed.object_count += 1;
        let version = published.as_ref().map(|published| &published.head.version);
        let put = self.put_head(&head, version);
        if matches!(put, Ok(true)) {
            return record.settle(common);
        }
        // The answer to a try that succeeded may have been lost. If this cannot find out, the record says what was begun, and
        // the next push finds out.
        let unknown = |e: Error| {
            e.context(format!("generation {} may have been published; push again to find out", id.number))
        };
        match (self.client.get("HEAD", MAX_HEAD_BYTES), put) {
            (Ok(Some(Object { bytes, .. })), _) if bytes == head => record.settle(common),
            (_, Err(e)) if is_refusal(&e) => Err(e),
            (_, Err(e)) | (Err(e), _) => Err(unknown(e)),
            (Ok(found), Ok(_)) => {
                // Another push may have built on this one, whose answer was lost.
                if let Some(found) = found {
                    let name = manifest_path(id.number, &digest);
                    let found =
                        self.published_by(found).and_then(|found| self.has_had(&found, id.number, &name));
                    if found.map_err(unknown)? {
                        return record.settle(common);
                    }
                }
                record.state.begun_push = None;
                record.save()?;
                let message = format!(
                    "{} was changed by another push at the same time, and generation {} of this store was not published; \
                     {WAYS_OUT}",
                    self.location(),
                    id.number
                );
                Err(Error::new(ErrorKind::Conflict, message))
            }
        }
    }

    /// Makes the bytes the HEAD, if it is still the one of `version`, or there is still none. Returns false if it is not.
    fn put_head(&self, head: &Bytes, version: Option<&Version>) -> Result<bool> {
        let put = match version {
            Some(version) => self.client.put_if_match("HEAD", head.clone(), version)?,
            None => self.client.put_new("HEAD", head.clone())?,
        };
        Ok(matches!(put, Put::Written(_)))
    }

    /// Puts FORMAT, which says whose remote this is, or only looks whether that would be possible.
    fn claim(&self, marker: &[u8], is_for_plan: bool) -> Result<()> {
        if !is_for_plan
            && let Put::Written(_) = self.client.put_new("FORMAT", Bytes::copy_from_slice(marker))?
        {
            return Ok(());
        }
        match self.client.get("FORMAT", 1024)? {
            None if is_for_plan => Ok(()),
            Some(found) if found.bytes == marker => Ok(()),
            _ => {
                let message = format!(
                    "{}: another store was pushed there, or began to be; push this one to another URL",
                    self.location(),
                );
                Err(Error::new(ErrorKind::Conflict, message))
            }
        }
    }

    /// Puts pages of the index into an object.
    fn put_pages(&self, pages: &[Vec<u8>]) -> Result<(Vec<Segment>, Stored)> {
        let mut packing = Packing::new(pages.iter().map(|page| page.len() as u64));
        for page in pages {
            packing.push(|sink| {
                sink(page);
                Ok(())
            })?;
        }
        let (bytes, segments) = packing.finish();
        let stored = self.put_object(&bytes, false)?;
        Ok((stored.place(segments), stored))
    }
}

/// Whether a server has refused a request, so that it has had no effect.
fn is_refusal(e: &Error) -> bool {
    let kind = e.io_error().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::PermissionDenied | io::ErrorKind::StorageFull))
}

/// Divides pages into runs that fit in an object.
fn packs_of(pages: &[Vec<u8>]) -> Vec<&[Vec<u8>]> {
    let mut packs = Vec::new();
    let (mut start, mut length_bytes) = (0, 0);
    for (at, page) in pages.iter().enumerate() {
        let page_bytes = page.len() as u64 + digests_length_bytes(page.len() as u64);
        if length_bytes + page_bytes > MAX_PACK_BYTES {
            packs.extend(pages.get(start..at));
            (start, length_bytes) = (at, 0);
        }
        length_bytes += page_bytes;
    }
    packs.extend(pages.get(start..));
    packs
}

/// Removes the files that the generation does not need from the index.
fn remove_unneeded(
    index: &mut Index,
    replica: &ReplicaFiles,
    replaced: &mut BTreeSet<ObjectName>,
    fetch: crate::index::FetchPages<'_>,
) -> Result<()> {
    let removed: Vec<_> = match replica.is_complete {
        true => {
            index.all(fetch)?.map(|(key, _)| key).filter(|key| !replica.needed.contains_key(key)).collect()
        }
        false => replica.removed.iter().copied().collect(),
    };
    for key in removed {
        let before = index.set(key, None, fetch)?;
        replaced.extend(before.iter().map(|segment| segment.object));
    }
    Ok(())
}

/// Returns the identity of a store.
fn snapshot_uuid(store: &Store) -> Result<stridemap_format::Uuid> {
    let uuid = uuid::Uuid::parse_str(&store.uuid());
    let invalid = |e| Error::new(ErrorKind::Corrupt, format!("{}: {e}", store.path().display()));
    uuid.map(uuid::Uuid::into_bytes).map_err(invalid)
}

impl Published {
    /// Returns the identity of the generation.
    pub(crate) fn id(&self) -> Result<GenerationId> {
        id_of(&self.manifest)
    }
}

/// Returns the identity of the generation of a remote manifest.
pub(crate) fn id_of(remote: &RemoteManifest) -> Result<GenerationId> {
    let RemoteManifest { uuid, generation, manifest, .. } = remote;
    let path = format!("meta/{generation:016x}.man in a remote manifest");
    let damaged = |e| Error::corrupt(Path::new(&path), e);
    let decoded = stridemap_format::Manifest::decode(manifest, *uuid, *generation).map_err(damaged)?;
    let encoded = decoded.without_history().encode().map_err(damaged)?;
    Ok(GenerationId { number: *generation, digest: stridemap_format::digest(&encoded) })
}
