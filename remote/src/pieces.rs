//! Bytes that arrived in several pieces, one after another.

use std::ops::Range;

use bytes::Bytes;

/// Returns pieces as one. A single one is not copied.
pub(crate) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.pop().unwrap_or_default(),
        _ => Bytes::from(pieces.concat()),
    }
}

pub(crate) fn copy_pieces(pieces: &[Bytes], mut buf: &mut [u8]) {
    for piece in pieces {
        let (place, rest) = buf.split_at_mut(piece.len());
        place.copy_from_slice(piece);
        buf = rest;
    }
}

/// Returns the pieces of a range of the bytes of all pieces.
pub(crate) fn trimmed(pieces: Vec<Bytes>, range: &Range<u64>) -> Vec<Bytes> {
    let (mut start, mut found) = (0, Vec::new());
    for piece in pieces {
        let end = start + piece.len() as u64;
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            found.push(piece.slice((from - start) as usize..(to - start) as usize));
        }
        start = end;
    }
    found
}
