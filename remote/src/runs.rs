//! The bytes of a file that were read last, and the ranges that will be read soon.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

use bytes::Bytes;

/// How many ranges can be announced and not read yet.
const MAX_ANNOUNCED: usize = 1024;

/// Runs of bytes of a file, and announced ranges.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The last one was read last.
    kept: VecDeque<Run>,
    max_kept: usize,
    /// In the order of their announcements. None overlaps another, or a run that is kept.
    announced: VecDeque<Range<u64>>,
}

/// Bytes from an offset on.
#[derive(Debug)]
struct Run {
    start: u64,
    bytes: Bytes,
    /// The end of what was used of an announced run. What is after it will be used.
    used_end: Option<u64>,
}

impl Run {
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }
}

impl Runs {
    pub(crate) fn new(max_kept: usize) -> Self {
        Runs { kept: VecDeque::new(), max_kept, announced: VecDeque::new() }
    }

    /// Copies bytes from a run that has all of them. Returns false if there is none.
    pub(crate) fn copy(&mut self, buf: &mut [u8], wanted: &Range<u64>) -> bool {
        for run in self.kept.iter_mut().rev() {
            let from = wanted.start.checked_sub(run.start).and_then(|from| usize::try_from(from).ok());
            let found = from.and_then(|from| run.bytes.get(from..from.checked_add(buf.len())?));
            if let Some(found) = found {
                buf.copy_from_slice(found);
                run.used_end = run.used_end.map(|end| end.max(wanted.end));
                return true;
            }
        }
        false
    }

    /// Keeps a run that was read, instead of the oldest one.
    pub(crate) fn keep(&mut self, start: u64, bytes: Bytes) {
        self.push(Run { start, bytes, used_end: None });
    }

    /// Keeps an announced run until it was used.
    pub(crate) fn keep_announced(&mut self, start: u64, bytes: Bytes) {
        self.push(Run { start, bytes, used_end: Some(start) });
    }

    fn push(&mut self, run: Run) {
        if self.kept.len() >= self.max_kept {
            // One that was used to its end is not needed any more.
            let is_used = |run: &Run| run.used_end.is_some_and(|end| end >= run.range().end);
            let at = self.kept.iter().position(is_used).unwrap_or(0);
            let dropped = self.kept.remove(at);
            if let Some((run, used_end)) = dropped.and_then(|run| Some((run.range(), run.used_end?))) {
                self.announce(used_end..run.end);
            }
        }
        self.kept.push_back(run);
    }

    /// Adds a range that will be read, without what is announced or kept already.
    pub(crate) fn announce(&mut self, mut range: Range<u64>) {
        let mut known: Vec<Range<u64>> = self.kept.iter().map(Run::range).collect();
        known.extend(self.announced.iter().cloned());
        known.sort_unstable_by_key(|range| range.start);
        let mut parts = Vec::new();
        for known in known {
            if known.start < range.end && range.start < known.end {
                parts.push(mem::replace(&mut range.start, known.end)..known.start);
            }
        }
        parts.push(range);
        for part in parts.into_iter().filter(|part| part.start < part.end) {
            if self.announced.len() < MAX_ANNOUNCED {
                self.announced.push_back(part);
            }
        }
    }

    /// Takes the announced ranges from the wanted one on, at most `count` of them. The first one has all wanted bytes.
    /// Returns none if no wanted byte was announced.
    pub(crate) fn take_announced(&mut self, wanted: &Range<u64>, count: usize) -> Vec<Range<u64>> {
        let is_wanted = |range: &Range<u64>| range.start < wanted.end && wanted.start < range.end;
        let Some(first) = self.announced.iter().position(is_wanted) else { return Vec::new() };
        let end = self.announced.len().min(first.saturating_add(count));
        let mut taken: Vec<Range<u64>> = self.announced.drain(first..end).collect();
        if let Some(first) = taken.first_mut() {
            *first = first.start.min(wanted.start)..first.end.max(wanted.end);
        }
        taken
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "these are lists of ranges of bytes")]
mod tests {
    use super::*;

    fn run(range: Range<u8>) -> (u64, Bytes) {
        (u64::from(range.start), range.collect())
    }

    fn read(runs: &mut Runs, range: Range<u64>) -> Option<Vec<u8>> {
        let mut buf = vec![0; (range.end - range.start) as usize];
        runs.copy(&mut buf, &range).then_some(buf)
    }

    #[test]
    fn announced_ranges_are_taken_once_however_they_overlap() {
        let mut runs = Runs::new(4);
        let (start, bytes) = run(20..30);
        runs.keep(start, bytes);
        for range in [0..10, 5..8, 5..25, 28..40, 8..60, 0..60, 70..70] {
            runs.announce(range);
        }
        assert_eq!(runs.announced, [0..10, 10..20, 30..40, 40..60]);
        // Of two others at the same time.
        assert_eq!(runs.take_announced(&(32..33), 1), [30..40]);
        assert_eq!(runs.take_announced(&(2..3), 9), [0..10, 10..20, 40..60]);
        assert_eq!(runs.take_announced(&(2..3), 9), []);
    }

    #[test]
    fn wanted_bytes_at_the_edge_of_announced_ranges_are_in_the_first_taken_one() {
        let mut runs = Runs::new(4);
        [0..10, 10..20, 20..30].into_iter().for_each(|range| runs.announce(range));
        assert_eq!(runs.take_announced(&(8..12), 1), [0..12]);
        assert_eq!(runs.take_announced(&(12..22), 2), [10..22, 20..30]);
        assert_eq!(runs.take_announced(&(5..35), 2), []);
    }

    #[test]
    fn announced_run_that_was_not_used_is_announced_again_when_it_is_dropped() {
        let mut runs = Runs::new(2);
        let (first, second) = (run(0..10), run(10..20));
        runs.keep_announced(first.0, first.1);
        runs.keep_announced(second.0, second.1);
        assert_eq!(read(&mut runs, 2..6), Some(vec![2, 3, 4, 5]));
        assert_eq!(read(&mut runs, 10..20), Some((10..20).collect()));
        // The used one goes first.
        let third = run(30..40);
        runs.keep_announced(third.0, third.1);
        assert_eq!((read(&mut runs, 10..12), read(&mut runs, 0..2)), (None, Some(vec![0, 1])));
        let fourth = run(50..60);
        runs.keep(fourth.0, fourth.1);
        assert_eq!(runs.announced, [6..10]);
        assert_eq!((read(&mut runs, 6..8), read(&mut runs, 31..32)), (None, Some(vec![31])));
        // What was not announced is only dropped.
        let fifth = run(70..80);
        runs.keep(fifth.0, fifth.1);
        runs.keep(fifth.0, run(80..90).1);
        assert_eq!(runs.announced, [6..10, 32..40]);
    }
}
