//! Reads segments of objects, and compares their bytes with their digests.

use std::ops::Range;

use bytes::Bytes;
use stridemap::Result;
use stridemap_format::remote::{BLOCK_BYTES, BLOCK_DIGEST_BYTES, Segment, object_path};
use stridemap_format::{Error as FormatError, Rule};

use crate::blocks::{BlockHasher, check_of};
use crate::broken;
use crate::client::Client;
use crate::digests::{Digests, Window, digests_of};

/// How much one request reads, if others can read the rest at the same time.
pub(crate) const MAX_REQUEST_BYTES: u64 = 8 * 1024 * 1024;

/// Ranges of one object that are closer than this are read by one request.
const MAX_GAP_BYTES: u64 = 256 * 1024;

const DIGEST_BYTES: usize = BLOCK_DIGEST_BYTES as usize;

/// Reads whole segments, and checks them. Neighbouring segments of one object are read by one request.
pub(crate) fn segments(client: &Client, segments: &[Segment]) -> Result<Vec<Bytes>> {
    let mut runs: Vec<(String, Range<u64>, Vec<usize>)> = Vec::new();
    let mut order: Vec<usize> = (0..segments.len()).collect();
    order.sort_by_key(|&at| segments.get(at).map(|segment| (segment.object, segment.offset_bytes)));
    for at in order {
        let Some(segment) = segments.get(at) else { continue };
        let (name, place) = (object_path(&segment.object), segment.place());
        match runs.last_mut() {
            Some((last, run, members))
                if *last == name
                    && place.start.saturating_sub(run.end) <= MAX_GAP_BYTES
                    && place.end.saturating_sub(run.start) <= MAX_REQUEST_BYTES =>
            {
                run.end = run.end.max(place.end);
                members.push(at);
            }
            _ => runs.push((name, place, vec![at])),
        }
    }
    let parts: Vec<(String, Range<u64>)> =
        runs.iter().map(|(name, run, _)| (name.clone(), run.clone())).collect();
    let mut read = vec![Bytes::new(); segments.len()];
    for ((_, run, members), bytes) in runs.iter().zip(ranges(client, &parts)?) {
        for &at in members {
            let (Some(segment), Some(read)) = (segments.get(at), read.get_mut(at)) else { continue };
            let place = segment.place();
            let range = (place.start - run.start) as usize..(place.end - run.start) as usize;
            *read = bytes.slice(range);
            check(client, segment, std::slice::from_ref(read))?;
        }
    }
    Ok(read)
}

/// Reads ranges of objects in parallel, each of any length.
fn ranges(client: &Client, parts: &[(String, Range<u64>)]) -> Result<Vec<Bytes>> {
    client.get_ranges(parts).into_iter().collect()
}

/// How the bytes of a part are checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Checked {
    /// All bytes of the segment, with its check.
    Whole,
    /// Whole blocks of a segment of several, with their digests.
    Blocks,
    /// They have digests of their own, which the caller checks.
    Later,
}

/// A range of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) range: Range<u64>,
    pub(crate) checked: Checked,
}

impl<'a> Part<'a> {
    pub(crate) fn whole(segment: &'a Segment) -> Self {
        Part { segment, range: 0..segment.length_bytes, checked: Checked::Whole }
    }

    /// Returns the blocks that a range touches.
    pub(crate) fn blocks(segment: &'a Segment, range: &Range<u64>) -> Self {
        let end = range.end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES).min(segment.length_bytes);
        Part { segment, range: range.start - range.start % BLOCK_BYTES..end, checked: Checked::Blocks }
    }

    /// Returns where a range of the segment is in its object.
    fn place(&self, range: Range<u64>) -> Range<u64> {
        self.segment.offset_bytes + range.start..self.segment.offset_bytes + range.end
    }
}

/// Reads parts of segments by requests of at most this length, in parallel, and checks them. Returns the pieces of each.
pub(crate) fn parts(
    client: &Client,
    digests: &Digests,
    parts: &[Part<'_>],
    request_bytes: u64,
) -> Result<Vec<Vec<Bytes>>> {
    let needed = parts.iter().filter(|part| part.checked == Checked::Blocks).map(|part| part.segment);
    let mut windows = digests.windows(needed);
    let missing = windows.iter().filter(|window| window.bytes.is_none());
    let mut requests: Vec<(String, Range<u64>)> =
        missing.map(|window| (object_path(&window.object), window.range.clone())).collect();
    let mut counts = Vec::new();
    for part in parts {
        let (name, before) = (object_path(&part.segment.object), requests.len());
        let mut at = part.range.start;
        while at < part.range.end {
            let next = part.range.end.min(at.saturating_add(request_bytes));
            requests.push((name.clone(), part.place(at..next)));
            at = next;
        }
        counts.push(requests.len() - before);
    }
    let mut read = ranges(client, &requests)?.into_iter();
    for window in windows.iter_mut().filter(|window| window.bytes.is_none()) {
        window.bytes = read.next();
    }
    let mut found = Vec::new();
    for (part, count) in parts.iter().zip(counts) {
        let pieces: Vec<Bytes> = read.by_ref().take(count).collect();
        match part.checked {
            Checked::Whole => check(client, part.segment, &pieces)?,
            Checked::Blocks => check_blocks(client, part, &pieces, (digests, &windows))?,
            Checked::Later => {}
        }
        found.push(pieces);
    }
    Ok(found)
}

/// Compares the bytes of a whole segment, in pieces, with its check.
pub(crate) fn check(client: &Client, segment: &Segment, pieces: &[Bytes]) -> Result<()> {
    let mut hasher = BlockHasher::default();
    pieces.iter().for_each(|piece| hasher.update(piece));
    check_hashed(client, segment, hasher)
}

/// Compares the digests of a whole segment with its check.
pub(crate) fn check_hashed(client: &Client, segment: &Segment, hasher: BlockHasher) -> Result<()> {
    match check_of(&hasher.finish()) == segment.check {
        true => Ok(()),
        false => Err(changed(client, segment, &segment.place())),
    }
}

/// Compares the bytes of blocks, in pieces, with their digests, and these with the check of the segment.
fn check_blocks(
    client: &Client,
    part: &Part<'_>,
    pieces: &[Bytes],
    (digests, windows): (&Digests, &[Window]),
) -> Result<()> {
    let segment = part.segment;
    let known = digests_of(windows, segment).filter(|(digests, _)| check_of(digests) == segment.check);
    let Some((expected, window)) = known else {
        // They may be right when they are read again.
        digests.forget(segment);
        return Err(changed(client, segment, &segment.digests_place()));
    };
    digests.keep(window);
    let mut hasher = BlockHasher::default();
    pieces.iter().for_each(|piece| hasher.update(piece));
    let found = hasher.finish();
    let first = part.range.start / BLOCK_BYTES;
    let expected = expected.chunks_exact(DIGEST_BYTES).skip(first as usize);
    match found.chunks_exact(DIGEST_BYTES).zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let start = (first + at as u64) * BLOCK_BYTES;
            let block = start..segment.length_bytes.min(start + BLOCK_BYTES);
            Err(changed(client, segment, &part.place(block)))
        }
    }
}

/// Returns the error of bytes of an object that are not those that were pushed.
fn changed(client: &Client, segment: &Segment, place: &Range<u64>) -> stridemap::Error {
    let detail = format!(
        "bytes {} to {} are not those that were pushed: their digest differs",
        place.start, place.end
    );
    let name = object_path(&segment.object);
    broken(client.location(), &name, FormatError::new(Rule::ObjectDigest, detail))
}
