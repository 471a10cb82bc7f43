//! Reads segments of objects, and compares their bytes with their digests.

use std::ops::Range;

use bytes::Bytes;
use stridemap::Result;
use stridemap_format::remote::{Segment, object_path};
use stridemap_format::{Error as FormatError, Rule};

use crate::broken;
use crate::client::Client;

/// How much one request reads, if others can read the rest at the same time.
pub(crate) const MAX_REQUEST_BYTES: u64 = 8 * 1024 * 1024;

/// Ranges of one object that are closer than this are read by one request.
const MAX_GAP_BYTES: u64 = 256 * 1024;

/// Returns where the bytes of a segment are in its object.
pub(crate) fn place(segment: &Segment) -> Range<u64> {
    let start = segment.offset_bytes();
    start..start.saturating_add(segment.length_bytes())
}

/// Reads whole segments, and checks them. Neighbouring segments of one object are read by one request.
pub(crate) fn segments(client: &Client, segments: &[Segment]) -> Result<Vec<Bytes>> {
    let mut runs: Vec<(String, Range<u64>, Vec<usize>)> = Vec::new();
    let mut order: Vec<usize> = (0..segments.len()).collect();
    order.sort_by_key(|&at| segments.get(at).map(|segment| (segment.object(), segment.offset_bytes())));
    for at in order {
        let Some(segment) = segments.get(at) else { continue };
        let (name, place) = (object_path(&segment.object()), place(segment));
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
            let place = place(segment);
            let range = (place.start - run.start) as usize..(place.end - run.start) as usize;
            *read = bytes.slice(range);
            check(client, segment, std::slice::from_ref(read))?;
        }
    }
    Ok(read)
}

/// Reads ranges of objects in parallel, each of any length.
pub(crate) fn ranges(client: &Client, parts: &[(String, Range<u64>)]) -> Result<Vec<Bytes>> {
    client.get_ranges(parts).into_iter().collect()
}

/// Compares the bytes of a whole segment, in pieces, with its digest.
pub(crate) fn check(client: &Client, segment: &Segment, pieces: &[Bytes]) -> Result<()> {
    let mut hasher = blake3::Hasher::new();
    for piece in pieces {
        hasher.update(piece);
    }
    check_hash(client, segment, &hasher.finalize())
}

/// Compares the hash of a whole segment with its digest.
pub(crate) fn check_hash(client: &Client, segment: &Segment, hash: &blake3::Hash) -> Result<()> {
    let is_right = match segment {
        Segment::Whole { object, .. } => hash.as_bytes() == object,
        Segment::Part { check, .. } => hash.as_bytes().starts_with(check),
    };
    if is_right {
        return Ok(());
    }
    let place = place(segment);
    let detail = format!(
        "bytes {} to {} are not those that were pushed: their digest differs",
        place.start, place.end
    );
    let name = object_path(&segment.object());
    Err(broken(client.location(), &name, FormatError::new(Rule::ObjectDigest, detail)))
}
