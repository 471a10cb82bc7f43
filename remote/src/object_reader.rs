//! Reads a file of a store from the segments of a remote.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use stridemap::replica::FileReader;
use stridemap::{Error, ErrorKind, Result, parallel};
use stridemap_format::limits::MAX_OBJECT_BYTES;
use stridemap_format::remote::{FileKey, FileKind, Segment, object_path};
use stridemap_format::{CHUNK_BYTES, Error as FormatError, Rule, digest};

use crate::broken;
use crate::client::Client;
use crate::fetch::{self, MAX_REQUEST_BYTES};
use crate::files::Source;
use crate::pieces::{copy_pieces, joined, slice_of};

/// A segment of at most this length is read, and checked, as a whole.
const SMALL_BYTES: u64 = 128 * 1024;

/// How much of a table is read at a time, at least. Nodes that are needed together are often near each other.
const TABLE_BLOCK_BYTES: u64 = 32 * 1024;

/// How much is read ahead at most, when a file is read in order.
const MAX_AHEAD_BYTES: u64 = 4 * 1024 * 1024;

/// A file of a store, as segments.
#[derive(Debug)]
pub(crate) struct ObjectReader {
    source: Arc<Source>,
    key: FileKey,
    segments: Vec<Placed>,
    size_bytes: u64,
    /// The digests of the storage's full chunks.
    sums: Option<Arc<ObjectReader>>,
    state: Mutex<State>,
}

/// How a file is read.
#[derive(Clone, Copy, PartialEq)]
enum Reading {
    /// From its beginning to its end, as a pull does, which usually needs the neighbours of a small file too.
    InOrder,
    Anywhere,
}

/// A segment, and where its bytes are in the file.
#[derive(Debug)]
struct Placed {
    start: u64,
    segment: Segment,
}

/// What was read last, and what will be read soon.
#[derive(Debug, Default)]
struct State {
    /// Bytes of the file, each from an offset on, the last read ones last.
    kept: Vec<(u64, Bytes)>,
    /// The end of the last read, and how much was read ahead then.
    last_end: u64,
    ahead_bytes: u64,
    /// Ranges that were announced and are not read yet.
    soon: VecDeque<Range<u64>>,
}

/// How many runs of bytes are kept. Tables keep all: their nodes are read again and again.
const MAX_KEPT_RUNS: usize = 16;
const MAX_KEPT_TABLE_RUNS: usize = 1024;

impl Placed {
    fn end(&self) -> u64 {
        self.start + self.segment.length_bytes()
    }

    fn is_in(&self, range: &Range<u64>) -> bool {
        range.start <= self.start && self.end() <= range.end
    }
}

impl ObjectReader {
    pub(crate) fn new(
        source: Arc<Source>,
        key: FileKey,
        segments: Vec<Segment>,
        sums: Option<Arc<ObjectReader>>,
    ) -> Self {
        let mut start = 0;
        let place = |segment: Segment| {
            let placed = Placed { start, segment };
            start = placed.end();
            placed
        };
        let segments: Vec<Placed> = segments.into_iter().map(place).collect();
        let size_bytes = segments.last().map_or(0, Placed::end);
        ObjectReader { source, key, segments, size_bytes, sums, state: Mutex::default() }
    }

    fn is_table(&self) -> bool {
        matches!(self.key.kind, FileKind::Table | FileKind::History)
    }

    /// Returns the segments that a range touches.
    fn touched(&self, range: &Range<u64>) -> &[Placed] {
        let first = self.segments.partition_point(|placed| placed.end() <= range.start);
        let last = self.segments.partition_point(|placed| placed.start < range.end);
        self.segments.get(first..last).unwrap_or_default()
    }

    /// Extends a range that is to be read: to whole small segments, and to what will probably be read next.
    fn widened(&self, range: Range<u64>, state: &mut State) -> Range<u64> {
        let Range { mut start, mut end } = range;
        if self.is_table() {
            let is_in_order = start == state.last_end && start > 0;
            let ahead = if is_in_order { state.ahead_bytes.saturating_mul(2) } else { TABLE_BLOCK_BYTES };
            state.ahead_bytes = ahead.clamp(TABLE_BLOCK_BYTES, MAX_AHEAD_BYTES);
            start -= start % TABLE_BLOCK_BYTES;
            end = end.max(start.saturating_add(state.ahead_bytes)).min(self.size_bytes);
            state.last_end = end;
        }
        if let [first, .., last] | [first @ last] = self.touched(&(start..end)) {
            if first.segment.length_bytes() <= SMALL_BYTES {
                start = first.start;
            }
            if last.segment.length_bytes() <= SMALL_BYTES {
                end = last.end();
            }
        }
        start..end
    }

    /// Returns how much one request reads. While a pull is busy with other files, more requests would not be faster, and each
    /// has its price.
    fn request_bytes(&self, range: &Range<u64>, read: Reading) -> u64 {
        match read {
            Reading::InOrder => {
                let count = self.source.client.idle_jobs().max(1) as u64;
                (range.end - range.start).div_ceil(count).max(MAX_REQUEST_BYTES)
            }
            Reading::Anywhere => MAX_REQUEST_BYTES,
        }
    }

    /// Reads a range from its objects, in parallel, and checks each whole segment and each whole chunk in it. The pieces are
    /// not copied together: they may be as long as all memory that a job has.
    fn fetch(&self, range: Range<u64>, read: Reading) -> Result<Vec<Bytes>> {
        let touched = self.touched(&range);
        let request_bytes = self.request_bytes(&range, read);
        let mut parts = Vec::new();
        // For each segment, the first part after it.
        let mut ends = Vec::new();
        for placed in touched {
            let object = fetch::place(&placed.segment);
            let (start, end) = (range.start.max(placed.start), range.end.min(placed.end()));
            let mut at = start;
            while at < end {
                let next = end.min(at.saturating_add(request_bytes));
                let from = object.start + (at - placed.start);
                parts.push((object_path(&placed.segment.object()), from..from + (next - at)));
                at = next;
            }
            ends.push(parts.len());
        }
        let pieces = match touched {
            [placed] if read == Reading::InOrder && parts.len() == 1 => vec![self.part(placed, &parts)?],
            _ => fetch::ranges(&self.source.client, &parts)?,
        };
        let mut first = 0;
        for (placed, end) in touched.iter().zip(ends) {
            if placed.is_in(&range) {
                fetch::check(
                    &self.source.client,
                    &placed.segment,
                    pieces.get(first..end).unwrap_or_default(),
                )?;
            }
            first = end;
        }
        self.check_chunks(&range, &pieces)?;
        Ok(pieces)
    }

    /// Whether a range that is read in order is an object of more than a few MiB that one request reads.
    fn is_streamed(&self, placed: &Placed, range: &Range<u64>) -> bool {
        let length_bytes = range.end - range.start;
        placed.is_in(range)
            && placed.segment.offset_bytes() == 0
            && length_bytes > MAX_AHEAD_BYTES
            && length_bytes <= self.request_bytes(range, Reading::InOrder)
    }

    /// Reads a segment by one request, passes its pieces on as they arrive, and then checks it.
    fn stream_segment(
        &self,
        placed: &Placed,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Source { client, .. } = &*self.source;
        let name = object_path(&placed.segment.object());
        let (mut hasher, mut refused) = (blake3::Hasher::new(), Ok(()));
        let streamed = client.stream(&name, placed.segment.length_bytes(), &mut |piece| {
            hasher.update(&piece);
            refused = sink(&piece);
            refused.as_ref().copied().map_err(|_| Error::new(ErrorKind::Io, "the bytes were refused"))
        });
        refused?;
        streamed?;
        Ok(fetch::check_hash(client, &placed.segment, &hasher.finalize())?)
    }

    /// Reads a range of one segment. An object of which many parts are read is read as a whole.
    fn part(&self, placed: &Placed, parts: &[(String, Range<u64>)]) -> Result<Bytes> {
        let Source { client, packs } = &*self.source;
        let object = placed.segment.object();
        if let (Segment::Part { .. }, [(name, range)]) = (&placed.segment, parts) {
            if let Some(bytes) = packs.get(&object, range) {
                return Ok(bytes);
            }
            // If the object as a whole is damaged, this part may still be right, which its check tells.
            if packs.is_frequent(&object)
                && let Some(whole) = whole_object(client, name)?
                && *blake3::hash(&whole).as_bytes() == object
            {
                packs.keep(object, whole);
                if let Some(bytes) = packs.get(&object, range) {
                    return Ok(bytes);
                }
            }
        }
        Ok(fetch::ranges(client, parts)?.pop().unwrap_or_default())
    }

    /// Compares the whole chunks in a range of a storage with their digests, except for those whose segments were compared as
    /// a whole. A pull reads whole segments, so it requests no digests.
    fn check_chunks(&self, range: &Range<u64>, pieces: &[Bytes]) -> Result<()> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let place = |number: u64| number * CHUNK_BYTES..(number + 1) * CHUNK_BYTES;
        let is_unchecked =
            |number: &u64| self.touched(&place(*number)).iter().any(|placed| !placed.is_in(range));
        let whole = range.start.div_ceil(CHUNK_BYTES)..range.end / CHUNK_BYTES;
        let numbers: Vec<u64> = whole.filter(is_unchecked).collect();
        let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) else { return Ok(()) };
        if sums.size_bytes < (last + 1).saturating_mul(16) {
            return Ok(());
        }
        let mut digests = vec![0; (last + 1 - first) as usize * 16];
        sums.read(&mut digests, first * 16)?;
        for number in numbers {
            let chunk = place(number);
            let chunk = slice_of(pieces, chunk.start - range.start..chunk.end - range.start);
            let expected = digests.chunks_exact(16).nth((number - first) as usize);
            if expected.is_some_and(|expected| digest(&chunk) != expected) {
                let detail = format!("the bytes of chunk {number} differ from their digest");
                let wrong = FormatError::new(Rule::ChunkDigest, detail).at(number * CHUNK_BYTES);
                return Err(broken(self.source.client.location(), &self.key.path(), wrong));
            }
        }
        Ok(())
    }

    /// Reads the announced ranges from the wanted one on, in parallel. Returns false if it was not announced.
    fn fetch_soon(&self, state: &mut State, wanted: &Range<u64>) -> Result<bool> {
        let holds = |range: &Range<u64>| range.start <= wanted.start && wanted.end <= range.end;
        let Some(first) = state.soon.iter().position(holds) else { return Ok(false) };
        state.soon.drain(..first);
        let count = state.soon.len().min(self.source.client.jobs());
        let ranges: Vec<Range<u64>> = state.soon.drain(..count).collect();
        parallel::in_order(
            count,
            |push| ranges.into_iter().try_for_each(push),
            |range| (range.start, self.fetch(range, Reading::Anywhere).map(joined)),
            |(start, bytes)| {
                self.keep(state, start, bytes?);
                Ok(())
            },
        )?;
        Ok(true)
    }

    fn keep(&self, state: &mut State, start: u64, bytes: Bytes) {
        let limit = if self.is_table() { MAX_KEPT_TABLE_RUNS } else { MAX_KEPT_RUNS };
        if state.kept.len() >= limit {
            state.kept.remove(0);
        }
        state.kept.push((start, bytes));
    }

    fn read(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        let wanted = offset_bytes..offset_bytes.saturating_add(buf.len() as u64);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if copy_kept(&state, buf, &wanted) {
            return Ok(());
        }
        if self.fetch_soon(&mut state, &wanted)? && copy_kept(&state, buf, &wanted) {
            return Ok(());
        }
        if wanted.end - wanted.start >= MAX_AHEAD_BYTES {
            drop(state);
            copy_pieces(&self.fetch(wanted, Reading::Anywhere)?, buf);
            return Ok(());
        }
        let range = self.widened(wanted.clone(), &mut state);
        // Large reads are not kept, and run beside each other.
        let is_kept = range != wanted || range.end - range.start <= SMALL_BYTES;
        if !is_kept {
            drop(state);
            copy_pieces(&self.fetch(range, Reading::Anywhere)?, buf);
            return Ok(());
        }
        let bytes = joined(self.fetch(range.clone(), Reading::Anywhere)?);
        self.keep(&mut state, range.start, bytes);
        copy_kept(&state, buf, &wanted);
        Ok(())
    }
}

/// Reads an object. `None` if it does not exist, or is longer than any object.
fn whole_object(client: &Client, name: &str) -> Result<Option<Bytes>> {
    match client.get(name, MAX_OBJECT_BYTES) {
        Err(e) if e.kind() == ErrorKind::LimitExceeded => Ok(None),
        found => Ok(found?.map(|object| object.bytes)),
    }
}

/// Copies bytes that were read before. Returns false if they were not.
fn copy_kept(state: &State, buf: &mut [u8], wanted: &Range<u64>) -> bool {
    let found = state.kept.iter().rev().find_map(|(start, bytes)| {
        let from = usize::try_from(wanted.start.checked_sub(*start)?).ok()?;
        bytes.get(from..from.checked_add(buf.len())?)
    });
    found.map(|bytes| buf.copy_from_slice(bytes)).is_some()
}

impl FileReader for ObjectReader {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let end = offset_bytes.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if buf.is_empty() {
            return Ok(());
        }
        Ok(self.read(buf, offset_bytes)?)
    }

    fn stream(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if range.end > self.size_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut at = range.start;
        while at < range.end {
            // A segment at a time: at most 64 MiB, checked as a whole.
            let first = self.touched(&(at..range.end)).first();
            let piece = at..first.map_or(range.end, Placed::end).min(range.end);
            at = piece.end;
            match first.filter(|placed| self.is_streamed(placed, &piece)) {
                Some(placed) => self.stream_segment(placed, sink)?,
                None => {
                    for piece in self.fetch(piece, Reading::InOrder)? {
                        sink(&piece)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn prefetch(&self, range: Range<u64>) {
        let range = range.start..range.end.min(self.size_bytes);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if range.start < range.end && !state.soon.contains(&range) && state.soon.len() < MAX_KEPT_RUNS {
            state.soon.push_back(range);
        }
    }
}
