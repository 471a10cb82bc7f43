//! Puts the bytes of an object together: the digests of blocks, then the segments.

use bytes::Bytes;
use stridemap::{Error, ErrorKind, Result};
use stridemap_format::remote::{ObjectName, Segment, digests_length_bytes};

use crate::blocks::{BlockHasher, check_of};

/// An object that gets its segments one after another.
#[derive(Debug)]
pub(crate) struct Packing {
    /// First room for the digests of all segments, which a reader gets with one request.
    bytes: Vec<u8>,
    /// Where the digests of the next segment begin.
    digests_at: usize,
    /// The lengths of the segments that are not there yet, the next one last.
    lengths: Vec<u64>,
    segments: Vec<Segment>,
}

impl Packing {
    /// Begins an object of segments of these lengths in bytes.
    pub(crate) fn new(lengths: impl Iterator<Item = u64>) -> Self {
        let mut lengths: Vec<u64> = lengths.collect();
        lengths.reverse();
        let digests_bytes: u64 = lengths.iter().copied().map(digests_length_bytes).sum();
        let total_bytes = digests_bytes + lengths.iter().sum::<u64>();
        let mut bytes = Vec::with_capacity(usize::try_from(total_bytes).unwrap_or(0));
        bytes.resize(digests_bytes as usize, 0);
        Packing { bytes, digests_at: 0, lengths, segments: Vec::new() }
    }

    /// Adds the next segment, whose bytes `fill` passes on. Returns its check.
    ///
    /// # Errors
    /// Those of `fill`; `Io` for another length than the one that was announced.
    pub(crate) fn push(
        &mut self,
        fill: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<()>,
    ) -> Result<[u8; 16]> {
        let (start, mut hasher) = (self.bytes.len(), BlockHasher::default());
        fill(&mut |piece| {
            hasher.update(piece);
            self.bytes.extend_from_slice(piece);
        })?;
        let length_bytes = (self.bytes.len() - start) as u64;
        if self.lengths.pop() != Some(length_bytes) {
            return Err(Error::new(ErrorKind::Io, "a file changed its length while it was read; push again"));
        }
        let digests = hasher.finish();
        let check = check_of(&digests);
        let place = self.digests_at..self.digests_at + digests_length_bytes(length_bytes) as usize;
        let digests_offset_bytes = if place.is_empty() { 0 } else { place.start as u64 };
        self.digests_at = place.end;
        if !place.is_empty()
            && let Some(room) = self.bytes.get_mut(place)
        {
            room.copy_from_slice(&digests);
        }
        self.segments.push(Segment {
            object: ObjectName::default(),
            offset_bytes: start as u64,
            length_bytes,
            digests_offset_bytes,
            check,
        });
        Ok(check)
    }

    /// Returns the bytes, and the segments without the name of the object.
    pub(crate) fn finish(self) -> (Bytes, Vec<Segment>) {
        (Bytes::from(self.bytes), self.segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_of_another_length_than_announced_is_refused() {
        for length in [99, 101, 70_000] {
            let mut packing = Packing::new([100, 70_000].into_iter());
            let pushed = packing.push(|sink| {
                sink(&vec![1; length]);
                Ok(())
            });
            assert_eq!(pushed.unwrap_err().kind(), ErrorKind::Io, "{length}");
        }
    }
}
