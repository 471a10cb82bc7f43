//! Reads a file of a store from the segments of a remote.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use stridemap::replica::FileReader;
use stridemap::{Error, ErrorKind, Result};
use stridemap_format::limits::MAX_OBJECT_BYTES;
use stridemap_format::remote::{BLOCK_BYTES, FileKey, FileKind, Segment, object_path};

use crate::blocks::BlockHasher;
use crate::client::Client;
use crate::fetch::{self, Checked, MAX_REQUEST_BYTES, Part};
use crate::files::Source;
use crate::pieces::{copy_pieces, joined, trimmed};
use crate::runs::{Limits, Runs};

/// A segment of a table of at most this length is read as a whole, because other nodes will be needed too.
const SMALL_TABLE_BYTES: u64 = 128 * 1024;

/// Longer runs of elements are not kept.
const MAX_KEPT_BYTES: u64 = 256 * 1024;

/// How much of a table is read at a time, at least. Nodes that are needed together are often near each other.
const TABLE_BLOCK_BYTES: u64 = 32 * 1024;

/// How much is read ahead at most, when a file is read in order.
const MAX_AHEAD_BYTES: u64 = 4 * 1024 * 1024;

/// A file of a store, as segments.
#[derive(Debug)]
pub(crate) struct ObjectReader {
    source: Arc<Source>,
    is_table: bool,
    segments: Vec<Placed>,
    size_bytes: u64,
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
#[derive(Debug)]
struct State {
    runs: Runs,
    /// The end of the last read, and how much was read ahead then.
    last_end: u64,
    ahead_bytes: u64,
}

/// What is kept of elements. Tables keep more: their nodes are read again and again.
const ELEMENTS_LIMITS: Limits = Limits { unannounced: 16, bytes: 64 << 20 };
const TABLE_LIMITS: Limits = Limits { unannounced: 1024, bytes: u64::MAX };

impl Placed {
    fn end(&self) -> u64 {
        self.start + self.segment.length_bytes
    }

    fn is_in(&self, range: &Range<u64>) -> bool {
        range.start <= self.start && self.end() <= range.end
    }
}

impl ObjectReader {
    pub(crate) fn new(source: Arc<Source>, key: FileKey, segments: Vec<Segment>) -> Self {
        let mut start = 0;
        let place = |segment: Segment| {
            let placed = Placed { start, segment };
            start = placed.end();
            placed
        };
        let segments: Vec<Placed> = segments.into_iter().map(place).collect();
        let size_bytes = segments.last().map_or(0, Placed::end);
        let is_table = matches!(key.kind, FileKind::Table | FileKind::History);
        let limits = if is_table { TABLE_LIMITS } else { ELEMENTS_LIMITS };
        let state = Mutex::new(State { runs: Runs::new(limits), last_end: 0, ahead_bytes: 0 });
        ObjectReader { source, is_table, segments, size_bytes, state }
    }

    /// Returns the segments that a range touches.
    fn touched(&self, range: &Range<u64>) -> &[Placed] {
        let first = self.segments.partition_point(|placed| placed.end() <= range.start);
        let last = self.segments.partition_point(|placed| placed.start < range.end);
        self.segments.get(first..last).unwrap_or_default()
    }

    /// Extends a range that is to be read: to what can be checked, and to what will probably be read next.
    fn widened(&self, range: Range<u64>, state: &mut State) -> Range<u64> {
        let Range { mut start, mut end } = range;
        if self.is_table {
            let is_in_order = start == state.last_end && start > 0;
            let ahead = if is_in_order { state.ahead_bytes.saturating_mul(2) } else { TABLE_BLOCK_BYTES };
            state.ahead_bytes = ahead.clamp(TABLE_BLOCK_BYTES, MAX_AHEAD_BYTES);
            start -= start % TABLE_BLOCK_BYTES;
            end = end.max(start.saturating_add(state.ahead_bytes)).min(self.size_bytes);
            state.last_end = end;
        }
        let range = start..end;
        match self.parts(&range, Reading::Anywhere).as_slice() {
            [(first, part), .., (last, other)] => {
                first.start + part.range.start..last.start + other.range.end
            }
            [(placed, part)] => placed.start + part.range.start..placed.start + part.range.end,
            [] => range,
        }
    }

    /// Returns the parts of segments that are read for a range: whole small segments, and whole blocks of others.
    fn parts(&self, range: &Range<u64>, read: Reading) -> Vec<(&Placed, Part<'_>)> {
        let small_bytes = if self.is_table { SMALL_TABLE_BYTES } else { BLOCK_BYTES };
        let mut parts = Vec::new();
        for placed in self.touched(range) {
            let segment = &placed.segment;
            let within =
                range.start.max(placed.start) - placed.start..range.end.min(placed.end()) - placed.start;
            let is_whole = within == (0..segment.length_bytes);
            let part = match segment.length_bytes <= small_bytes {
                true => Part::whole(segment),
                false if is_whole && (read == Reading::InOrder || self.is_table) => Part::whole(segment),
                // Its nodes have digests.
                false if self.is_table => Part { segment, range: within, checked: Checked::Later },
                false => Part::blocks(segment, &within),
            };
            parts.push((placed, part));
        }
        parts
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

    /// Reads a range from its objects, in parallel, with all bytes that are needed to check it. The pieces are not copied
    /// together: they may be as long as all memory that a job has.
    fn fetch(&self, range: Range<u64>, read: Reading) -> Result<Vec<Bytes>> {
        if let (Reading::InOrder, [(placed, part)]) = (read, self.parts(&range, read).as_slice())
            && part.checked == Checked::Whole
        {
            let pieces = self.segment(part.segment)?;
            return Ok(trimmed(pieces, &(range.start - placed.start..range.end - placed.start)));
        }
        Ok(self.fetch_all(&[range], read)?.concat())
    }

    /// Reads several ranges at the same time. Returns the pieces of each.
    fn fetch_all(&self, ranges: &[Range<u64>], read: Reading) -> Result<Vec<Vec<Bytes>>> {
        let Source { client, digests, .. } = &*self.source;
        let of_ranges: Vec<Vec<(&Placed, Part<'_>)>> =
            ranges.iter().map(|range| self.parts(range, read)).collect();
        let parts: Vec<Part<'_>> = of_ranges.iter().flatten().map(|(_, part)| part.clone()).collect();
        let request_bytes = ranges.iter().map(|range| self.request_bytes(range, read)).max();
        let request_bytes = request_bytes.unwrap_or(MAX_REQUEST_BYTES);
        let mut found = fetch::parts(client, digests, &parts, request_bytes)?.into_iter();
        let pieces = ranges.iter().zip(of_ranges).map(|(range, parts)| {
            let start = parts.first().map_or(0, |(placed, part)| placed.start + part.range.start);
            let pieces = found.by_ref().take(parts.len()).flatten().collect();
            trimmed(pieces, &(range.start - start..range.end - start))
        });
        Ok(pieces.collect())
    }

    /// Whether a range that is read in order is an object of more than a few MiB that one request reads.
    fn is_streamed(&self, placed: &Placed, range: &Range<u64>) -> bool {
        let length_bytes = range.end - range.start;
        let is_alone = placed.segment.offset_bytes == placed.segment.digests_place().end;
        placed.is_in(range)
            && is_alone
            && length_bytes > MAX_AHEAD_BYTES
            && length_bytes <= self.request_bytes(range, Reading::InOrder)
    }

    /// Reads a segment by one request, passes its pieces on as they arrive, and then checks it.
    fn stream_segment(
        &self,
        placed: &Placed,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (client, segment) = (&self.source.client, &placed.segment);
        let (mut hasher, mut refused) = (BlockHasher::default(), Ok(()));
        // The digests, which the object begins with.
        let mut before = segment.offset_bytes;
        let streamed = client.stream(&object_path(&segment.object), segment.place().end, &mut |piece| {
            let (skipped, piece) =
                piece.split_at(piece.len().min(usize::try_from(before).unwrap_or(usize::MAX)));
            before -= skipped.len() as u64;
            hasher.update(piece);
            refused = sink(piece);
            refused.as_ref().copied().map_err(|_| Error::new(ErrorKind::Io, "the bytes were refused"))
        });
        refused?;
        streamed?;
        Ok(fetch::check_hashed(client, segment, hasher)?)
    }

    /// Reads a whole segment. An object of which many segments are read is read as a whole.
    fn segment(&self, segment: &Segment) -> Result<Vec<Bytes>> {
        let Source { client, packs, digests } = &*self.source;
        let known = || packs.get(&segment.object, &segment.place());
        let mut found = known();
        if found.is_none()
            && segment.length_bytes <= MAX_AHEAD_BYTES
            && packs.is_frequent(&segment.object)
            && let Some(whole) = whole_object(client, &object_path(&segment.object))?
        {
            packs.keep(segment.object, whole);
            found = known();
        }
        if let Some(bytes) = found.map(|bytes| vec![bytes])
            && fetch::check(client, segment, &bytes).is_ok()
        {
            return Ok(bytes);
        }
        let length = self.request_bytes(&(0..segment.length_bytes), Reading::InOrder);
        Ok(fetch::parts(client, digests, &[Part::whole(segment)], length)?.concat())
    }

    /// Reads the announced ranges from the wanted one on, in parallel. Returns false if it was not announced.
    fn fetch_announced(&self, state: &mut State, wanted: &Range<u64>) -> Result<bool> {
        let ranges = state.runs.take_announced(wanted, self.source.client.jobs());
        if ranges.is_empty() {
            return Ok(false);
        }
        for (range, pieces) in ranges.iter().zip(self.fetch_all(&ranges, Reading::Anywhere)?) {
            state.runs.keep_announced(range.start, joined(pieces));
        }
        Ok(true)
    }

    fn read(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        let wanted = offset_bytes..offset_bytes.saturating_add(buf.len() as u64);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.runs.copy(buf, &wanted) {
            return Ok(());
        }
        if self.fetch_announced(&mut state, &wanted)? && state.runs.copy(buf, &wanted) {
            return Ok(());
        }
        if wanted.end - wanted.start >= MAX_AHEAD_BYTES {
            drop(state);
            copy_pieces(&self.fetch(wanted, Reading::Anywhere)?, buf);
            return Ok(());
        }
        let range = self.widened(wanted.clone(), &mut state);
        // Large reads are not kept, and run beside each other.
        let is_kept = self.is_table || range.end - range.start <= MAX_KEPT_BYTES;
        if !is_kept {
            drop(state);
            copy_pieces(&self.fetch(wanted, Reading::Anywhere)?, buf);
            return Ok(());
        }
        let bytes = joined(self.fetch(range.clone(), Reading::Anywhere)?);
        let from = (wanted.start - range.start) as usize;
        if let Some(found) = bytes.get(from..from + buf.len()) {
            buf.copy_from_slice(found);
        }
        state.runs.keep(range.start, bytes);
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
        state.runs.announce(range);
    }
}
