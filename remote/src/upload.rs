//! Puts the bytes of files that a remote lacks into objects.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use stridemap::replica::NeededFile;
use stridemap::{Error, ErrorKind, Result, Snapshot};
use stridemap_format::limits::MAX_SEGMENT_BYTES;
use stridemap_format::remote::{
    FileKey, FileKind, ObjectName, Segment, digests_length_bytes, object_path, total_bytes,
};

use crate::Remote;
use crate::blocks::{BlockDigest, BlockHasher, check_of};
use crate::ended::Ended;
use crate::packing::Packing;
use crate::progress::Tally;
use crate::put_object::{MAX_PACK_BYTES, Stored};

/// A piece of a file of at most this length shares an object with others.
const SMALL_BYTES: u64 = 4 * 1024 * 1024;

/// If a file ends with more short segments than this, they are put again as few long ones, so that its entry in the index
/// stays short.
const MAX_SHORT_SEGMENTS: usize = 512;

/// What a push has to send.
pub(crate) struct Uploads<'a> {
    remote: &'a Remote,
    snapshot: &'a Snapshot,
    /// Whether objects may be there already, from a push that was killed.
    is_resumed: bool,
    /// For each file, the segments that stay.
    files: BTreeMap<FileKey, Vec<Segment>>,
    has_in_place: bool,
    /// Mutable storages of several pieces.
    locked: Vec<FileKey>,
    /// The pieces that are sent, in the order of the files.
    pieces: Vec<Piece>,
}

/// A range of a file that becomes a segment.
#[derive(Clone, Debug)]
struct Piece {
    key: FileKey,
    range: Range<u64>,
}

impl Piece {
    fn length_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The checks of pieces, by the file and the offset of each.
type Checks = BTreeMap<(FileKey, u64), BlockDigest>;

/// What was sent.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// All segments of the files that changed.
    pub(crate) files: BTreeMap<FileKey, Vec<Segment>>,
    /// The bytes of files, without digests of blocks.
    pub(crate) changed_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) object_count: u64,
    /// The objects that an earlier push left.
    pub(crate) reused: Vec<ObjectName>,
}

/// Returns the segments of a file that stay when it grows.
fn kept_segments(known: &[Segment]) -> &[Segment] {
    let is_short = |segment: &Segment| segment.length_bytes < MAX_SEGMENT_BYTES;
    match known.iter().filter(|segment| is_short(segment)).count() {
        ..MAX_SHORT_SEGMENTS => known,
        _ => {
            let first = known.iter().position(is_short).unwrap_or(known.len());
            known.get(..first).unwrap_or_default()
        }
    }
}

impl<'a> Uploads<'a> {
    pub(crate) fn new(remote: &'a Remote, snapshot: &'a Snapshot, is_resumed: bool) -> Self {
        Uploads {
            remote,
            snapshot,
            is_resumed,
            files: BTreeMap::new(),
            has_in_place: false,
            locked: Vec::new(),
            pieces: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether elements are sent that may have changed without a commit.
    pub(crate) fn has_in_place(&self) -> bool {
        self.has_in_place
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::length_bytes).sum()
    }

    /// Adds a file. `known` are its segments in the remote, if the remote has the file.
    pub(crate) fn add(&mut self, key: FileKey, needed: &NeededFile, known: Option<&[Segment]>) -> Result<()> {
        let (is_known, known) = (known.is_some(), known.unwrap_or_default());
        let known_bytes: u64 = total_bytes(known);
        let length_bytes = needed.length_bytes;
        // Files of the history have the number of a generation, and each machine may write its own for that number.
        let may_differ = needed.is_in_place || key.kind == FileKind::History;
        if is_known && known_bytes == length_bytes && (!may_differ || self.is_same(key, known)?) {
            return Ok(());
        }
        let can_grow = matches!(key.kind, FileKind::Storage | FileKind::Sum)
            && !may_differ
            && known_bytes <= length_bytes;
        let kept = if can_grow { kept_segments(known) } else { &[] };
        let start = total_bytes(kept);
        self.files.insert(key, kept.to_vec());
        self.has_in_place |= needed.is_in_place;
        if needed.has_lock && length_bytes > MAX_SEGMENT_BYTES {
            self.locked.push(key);
        }
        let mut at = start;
        while at < length_bytes {
            let end = length_bytes.min(at.saturating_add(MAX_SEGMENT_BYTES));
            self.pieces.push(Piece { key, range: at..end });
            at = end;
        }
        Ok(())
    }

    /// Whether a file has the bytes that the remote has.
    fn is_same(&self, key: FileKey, known: &[Segment]) -> Result<bool> {
        let mut at = 0;
        for segment in known {
            let range = at..at + segment.length_bytes;
            at = range.end;
            let mut hasher = BlockHasher::default();
            self.stream(key, range, &mut |bytes| hasher.update(bytes))?;
            if check_of(&hasher.finish()) != segment.check {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stream(&self, key: FileKey, range: Range<u64>, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        let file = self.snapshot.open_replica_file(key)?;
        let streamed = file.stream(range, &mut |part| {
            sink(part);
            Ok(())
        });
        streamed.map_err(|e| Error::io("read", std::path::Path::new(&key.path()), e))
    }

    /// Reads each mutable storage of several pieces under one lock, and returns the checks of its pieces: together they
    /// are one state. The pieces are read again to be sent, each under a lock of its own.
    fn states(&self) -> Result<Checks, Ended> {
        let mut checks = Checks::new();
        for key in &self.locked {
            let pieces: Vec<&Piece> = self.pieces.iter().filter(|piece| piece.key == *key).collect();
            let range = 0..pieces.last().map_or(0, |piece| piece.range.end);
            let mut ends = pieces.iter().map(|piece| piece.range.end);
            let (mut at, mut end, mut hasher) = (0, ends.next(), BlockHasher::default());
            let mut found = Vec::new();
            self.stream(*key, range, &mut |mut bytes| {
                while let Some(length) = end.map(|end| bytes.len().min((end - at) as usize))
                    && !bytes.is_empty()
                {
                    let (piece, rest) = bytes.split_at(length);
                    hasher.update(piece);
                    (at, bytes) = (at + length as u64, rest);
                    if Some(at) == end {
                        found.push(check_of(&std::mem::take(&mut hasher).finish()));
                        end = ends.next();
                    }
                }
            })
            .map_err(Ended::by_others)?;
            checks.extend(pieces.iter().map(|piece| (*key, piece.range.start)).zip(found));
        }
        Ok(checks)
    }

    /// Returns the pieces of each object.
    fn objects(&self) -> Vec<Vec<Piece>> {
        let mut objects = Vec::new();
        let (mut pack, mut pack_bytes) = (Vec::new(), 0);
        for piece in &self.pieces {
            if piece.length_bytes() > SMALL_BYTES {
                objects.push(vec![piece.clone()]);
                continue;
            }
            let length_bytes = piece.length_bytes() + digests_length_bytes(piece.length_bytes());
            if pack_bytes + length_bytes > MAX_PACK_BYTES {
                objects.push(std::mem::take(&mut pack));
                pack_bytes = 0;
            }
            pack_bytes += length_bytes;
            pack.push(piece.clone());
        }
        if !pack.is_empty() {
            objects.push(pack);
        }
        objects
    }

    /// Sends everything, several objects at a time.
    pub(crate) fn run(mut self, tally: &Tally<'_>) -> Result<Sent, Ended> {
        let expected = self.states()?;
        let objects = self.objects();
        let next = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        let [changed_bytes, sent_bytes, object_count] = [const { AtomicU64::new(0) }; 3];
        let done: Mutex<Vec<(Piece, Segment)>> = Mutex::default();
        let reused: Mutex<Vec<ObjectName>> = Mutex::default();
        let failure: Mutex<Option<Ended>> = Mutex::default();
        let work = || {
            while !is_over.load(Ordering::Relaxed)
                && let Some(pieces) = objects.get(next.fetch_add(1, Ordering::Relaxed) as usize)
            {
                match self.send(pieces, &expected, tally) {
                    Ok((segments, stored)) => {
                        let mut reused = reused.lock().unwrap_or_else(PoisonError::into_inner);
                        reused.extend(stored.reused());
                        drop(reused);
                        if stored.sent_bytes > 0 {
                            let length_bytes = segments.iter().map(|segment| segment.length_bytes).sum();
                            changed_bytes.fetch_add(length_bytes, Ordering::Relaxed);
                        }
                        sent_bytes.fetch_add(stored.sent_bytes, Ordering::Relaxed);
                        object_count.fetch_add(stored.object_count, Ordering::Relaxed);
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done.extend(pieces.iter().cloned().zip(segments));
                    }
                    Err(e) => {
                        is_over.store(true, Ordering::Relaxed);
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    }
                }
            }
        };
        thread::scope(|scope| {
            let others = self.remote.client.jobs().min(objects.len()).saturating_sub(1);
            (0..others).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        if let Some(e) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(e);
        }
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(piece, _)| (piece.key, piece.range.start));
        for (piece, segment) in done {
            self.files.entry(piece.key).or_default().push(segment);
        }
        Ok(Sent {
            files: self.files,
            changed_bytes: changed_bytes.into_inner(),
            sent_bytes: sent_bytes.into_inner(),
            object_count: object_count.into_inner(),
            reused: reused.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Checks that the objects that were there already still are: a prune may have taken them for garbage meanwhile.
    pub(crate) fn check_reused(remote: &Remote, reused: &[ObjectName]) -> Result<()> {
        for name in reused.iter().map(object_path) {
            if remote.client.info(&name)?.is_none() {
                let message = format!("{name} was deleted by a prune during this push; push again");
                return Err(Error::new(ErrorKind::Conflict, message));
            }
        }
        Ok(())
    }

    /// Puts some pieces. Returns their segments.
    fn send(
        &self,
        pieces: &[Piece],
        expected: &Checks,
        tally: &Tally<'_>,
    ) -> Result<(Vec<Segment>, Stored), Ended> {
        let mut packing = Packing::new(pieces.iter().map(Piece::length_bytes));
        for piece in pieces {
            let packed = packing.push(|sink| self.stream(piece.key, piece.range.clone(), sink));
            let check = packed.map_err(Ended::by_others)?;
            if expected.get(&(piece.key, piece.range.start)).is_some_and(|expected| *expected != check) {
                let message = format!(
                    "{}: the tensor was changed several times while it was sent; push again when its writers pause",
                    piece.key.path()
                );
                return Err(Ended::Overtaken(Error::new(ErrorKind::Busy, message)));
            }
        }
        let (bytes, segments) = packing.finish();
        let stored = self.remote.put_object(&bytes, self.is_resumed)?;
        tally.add(pieces.iter().map(Piece::length_bytes).sum())?;
        Ok((stored.place(segments), stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_segments_stay_when_a_long_file_grows() {
        let segment = |length_bytes| Segment {
            object: [0; 32],
            offset_bytes: 0,
            length_bytes,
            digests_offset_bytes: 0,
            check: [0; 16],
        };
        let mut known = vec![segment(MAX_SEGMENT_BYTES); 2 * MAX_SHORT_SEGMENTS];
        known.resize(known.len() + MAX_SHORT_SEGMENTS - 1, segment(1));
        assert_eq!(kept_segments(&known).len(), known.len());
        known.push(segment(1));
        assert_eq!(kept_segments(&known).len(), 2 * MAX_SHORT_SEGMENTS);
    }
}
