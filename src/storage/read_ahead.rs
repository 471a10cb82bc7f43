//! Announces what will be read of a file, so that a file that is far away can fetch it meanwhile.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::disk::DiskFile;

/// The longest range that is announced at once. Several of them can be fetched in parallel.
pub(crate) const RANGE_BYTES: u64 = 4 << 20;

/// The limit on bytes that are announced and not yet read.
pub(crate) const WINDOW_BYTES: u64 = 64 << 20;

/// The longest gap that is cheaper to fetch than another request.
pub(crate) const MAX_GAP_BYTES: u64 = 256 << 10;

/// Announces the ranges of a read, in their order and ahead of it.
pub(crate) struct ReadAhead<I> {
    file: Arc<dyn DiskFile>,
    /// The ranges that were not announced yet.
    coming: I,
    /// The next range, or what is left of it.
    next: Option<Range<u64>>,
    /// What was announced and not yet read.
    announced: VecDeque<Announced>,
    announced_bytes: u64,
    has_begun: bool,
}

/// An announced range.
struct Announced {
    range: Range<u64>,
    /// How many bytes of it are still to be read.
    unread_bytes: u64,
    /// How many of the coming ranges it contains.
    count: u64,
}

impl<I: Iterator<Item = Range<u64>>> ReadAhead<I> {
    /// Returns `None` if the file can do nothing with announcements.
    pub(crate) fn of(file: &Arc<dyn DiskFile>, mut coming: I) -> Option<Self> {
        if !file.reads_ahead() {
            return None;
        }
        let next = coming.next();
        let (file, announced) = (Arc::clone(file), VecDeque::new());
        Some(ReadAhead { file, coming, next, announced, announced_bytes: 0, has_begun: false })
    }

    /// Announces more, before the next bytes are read.
    pub(crate) fn before_read_of(&mut self, mut length_bytes: u64) {
        let first = self.announced.len();
        while self.announced_bytes < WINDOW_BYTES
            && let Some(announced) = self.next_range()
        {
            self.announced_bytes += announced.range.end - announced.range.start;
            self.announced.push_back(announced);
        }
        // A single read needs no announcement.
        let is_single = !self.has_begun && self.announced.len() == 1 && self.announced[0].count == 1;
        if !is_single {
            self.announced.range(first..).for_each(|announced| self.file.prefetch(announced.range.clone()));
        }
        self.has_begun = true;
        while length_bytes > 0
            && let Some(announced) = self.announced.front_mut()
        {
            let read_bytes = length_bytes.min(announced.unread_bytes);
            announced.unread_bytes -= read_bytes;
            length_bytes -= read_bytes;
            if announced.unread_bytes == 0 {
                self.announced_bytes -= announced.range.end - announced.range.start;
                self.announced.pop_front();
            }
        }
    }

    /// Joins the coming ranges that are close to each other.
    fn next_range(&mut self) -> Option<Announced> {
        let first = self.next.take()?;
        let end = first.end.min(first.start.saturating_add(RANGE_BYTES));
        let mut announced = Announced { range: first.start..end, unread_bytes: end - first.start, count: 1 };
        if end < first.end {
            self.next = Some(end..first.end);
            return Some(announced);
        }
        let Announced { range, unread_bytes, count } = &mut announced;
        for next in self.coming.by_ref() {
            let is_near = next.start >= range.start && next.start <= range.end.saturating_add(MAX_GAP_BYTES);
            if !is_near || next.end > range.start.saturating_add(RANGE_BYTES) {
                self.next = Some(next);
                break;
            }
            *unread_bytes += next.end - next.start;
            *count += 1;
            range.end = range.end.max(next.end);
        }
        Some(announced)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::sync::Mutex;

    use super::*;
    use crate::disk::{FileStat, LockMode};

    /// Records what is announced.
    #[derive(Debug, Default)]
    struct Recorder(Mutex<Vec<Range<u64>>>);

    impl DiskFile for Recorder {
        fn reads_ahead(&self) -> bool {
            true
        }

        fn prefetch(&self, range: Range<u64>) {
            self.0.lock().unwrap().push(range);
        }

        fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn allocate(&self, _: Range<u64>) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn set_len(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn stat(&self) -> io::Result<FileStat> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn try_lock(&self, _: LockMode) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn unlock(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn is_network(&self) -> io::Result<bool> {
            Ok(true)
        }

        fn as_file(&self) -> Option<&File> {
            None
        }
    }

    /// Reads the ranges one after another, and returns what was announced before each read.
    fn announced(ranges: &[Range<u64>]) -> Vec<Vec<Range<u64>>> {
        let recorder = Arc::new(Recorder::default());
        let file: Arc<dyn DiskFile> = Arc::clone(&recorder) as _;
        let mut ahead = ReadAhead::of(&file, ranges.iter().cloned()).unwrap();
        let read = |range: &Range<u64>| {
            ahead.before_read_of(range.end - range.start);
            std::mem::take(&mut *recorder.0.lock().unwrap())
        };
        ranges.iter().map(read).collect()
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "ranges are the items")]
    fn near_ranges_are_joined_and_a_single_one_is_not_announced() {
        assert_eq!(announced(&[5..100]), [vec![]]);
        assert_eq!(announced(&[5..100, 200..300, 150..160]), [vec![5..300], vec![], vec![]]);
        let far = 100 + MAX_GAP_BYTES + 1;
        assert_eq!(announced(&[0..100, far..far + 9]), [vec![0..100, far..far + 9], vec![]]);
        assert_eq!(announced(&[far..far + 9, 0..100]), [vec![far..far + 9, 0..100], vec![]]);
    }

    #[test]
    fn window_moves_with_the_read() {
        let blocks: Vec<Range<u64>> =
            (0..40).map(|block| block * RANGE_BYTES..(block + 1) * RANGE_BYTES).collect();
        let announced = announced(&blocks);
        assert_eq!(announced[0], blocks[..16]);
        for (at, later) in announced.iter().enumerate().skip(1) {
            let expected = blocks.get(at + 15..(at + 16).min(40)).unwrap_or_default();
            assert_eq!(later, expected, "{at}");
        }
    }

    #[test]
    fn gaps_count_towards_the_window() {
        let ranges: Vec<Range<u64>> =
            (0..4000).map(|at| at * MAX_GAP_BYTES..at * MAX_GAP_BYTES + 4).collect();
        let announced = announced(&ranges);
        let first: u64 = announced[0].iter().map(|range| range.end - range.start).sum();
        assert!((WINDOW_BYTES - RANGE_BYTES..WINDOW_BYTES + RANGE_BYTES).contains(&first), "{first}");
        let all: Vec<Range<u64>> = announced.concat();
        assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(all.last().unwrap().end, ranges.last().unwrap().end);
    }
}
