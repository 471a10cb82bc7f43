//! The bytes of a file that were read last, and the ranges that will be read soon.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

use bytes::Bytes;

/// How many ranges can be announced and not read yet. The oldest ones go first.
const MAX_ANNOUNCED: usize = 1024;

/// How many runs are kept.
const MAX_RUNS: usize = 1024;

/// Runs of bytes of a file, and announced ranges.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The last one was read last.
    kept: VecDeque<Run>,
    kept_bytes: u64,
    limits: Limits,
    /// In the order of their announcements. None overlaps another.
    announced: VecDeque<Range<u64>>,
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many runs that were not announced.
    pub(crate) unannounced: usize,
    /// How many bytes in all.
    pub(crate) bytes: u64,
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

    /// Returns the part that will be used.
    fn unused(&self) -> Range<u64> {
        let Range { start, end } = self.range();
        self.used_end.unwrap_or(end).clamp(start, end)..end
    }
}

impl Runs {
    pub(crate) fn new(limits: Limits) -> Self {
        Runs { kept: VecDeque::new(), kept_bytes: 0, limits, announced: VecDeque::new() }
    }

    /// Copies bytes from the runs that have them. Returns false if some are in none.
    pub(crate) fn copy(&mut self, buf: &mut [u8], wanted: &Range<u64>) -> bool {
        let mut at = wanted.start;
        while at < wanted.end {
            let Some(run) = self.kept.iter_mut().rev().find(|run| run.range().contains(&at)) else {
                return false;
            };
            let end = run.range().end.min(wanted.end);
            let from = (at - run.start) as usize..(end - run.start) as usize;
            let to = (at - wanted.start) as usize..(end - wanted.start) as usize;
            if let (Some(found), Some(to)) = (run.bytes.get(from), buf.get_mut(to)) {
                to.copy_from_slice(found);
            }
            run.used_end = run.used_end.map(|used_end| used_end.max(end));
            at = end;
        }
        true
    }

    /// Returns the part of a range from the first byte that no run has.
    fn missing(&self, wanted: &Range<u64>) -> Range<u64> {
        let mut at = wanted.start;
        while at < wanted.end
            && let Some(run) = self.kept.iter().rev().find(|run| run.range().contains(&at))
        {
            at = run.range().end;
        }
        at..wanted.end.max(at)
    }

    /// Keeps a run that was read and not announced, instead of the oldest one.
    pub(crate) fn keep(&mut self, start: u64, bytes: Bytes) {
        let is_unannounced = |run: &&Run| run.used_end.is_none();
        if self.kept.iter().filter(is_unannounced).count() >= self.limits.unannounced
            && let Some(at) = self.kept.iter().position(|run| run.used_end.is_none())
        {
            self.remove(at);
        }
        self.push(Run { start, bytes, used_end: None });
    }

    /// Keeps an announced run until it was used.
    pub(crate) fn keep_announced(&mut self, start: u64, bytes: Bytes) {
        self.push(Run { start, bytes, used_end: Some(start) });
    }

    fn push(&mut self, run: Run) {
        self.kept_bytes += run.bytes.len() as u64;
        while !self.kept.is_empty() && (self.kept.len() >= MAX_RUNS || self.kept_bytes > self.limits.bytes) {
            // One that will not be used goes first.
            self.remove(self.kept.iter().position(|run| run.unused().is_empty()).unwrap_or(0));
        }
        self.kept.push_back(run);
    }

    fn remove(&mut self, at: usize) {
        if let Some(dropped) = self.kept.remove(at) {
            self.kept_bytes -= dropped.bytes.len() as u64;
            self.announce(dropped.unused());
        }
    }

    /// Adds a range that will be read, without what is announced already. Runs with some of it stay until it was read.
    pub(crate) fn announce(&mut self, mut range: Range<u64>) {
        let mut known: Vec<Range<u64>> = self.announced.iter().cloned().collect();
        for run in &mut self.kept {
            let part = run.start.max(range.start)..run.range().end.min(range.end);
            if part.start < part.end {
                run.used_end = Some(run.unused().start.min(part.start));
                known.push(part);
            }
        }
        known.sort_unstable_by_key(|range| range.start);
        let mut parts = Vec::new();
        for known in known {
            if known.start < range.end && range.start < known.end {
                parts.push(mem::replace(&mut range.start, known.end)..known.start);
            }
        }
        parts.push(range);
        self.announced.extend(parts.into_iter().filter(|part| part.start < part.end));
        let more = self.announced.len().saturating_sub(MAX_ANNOUNCED);
        self.announced.drain(..more);
    }

    /// Takes announced ranges: those that have wanted bytes, and those after them, as far as they are at most `count` and
    /// can be kept. All wanted bytes that are not kept are in the returned ranges. Returns none if none was announced.
    pub(crate) fn take_announced(&mut self, wanted: &Range<u64>, count: usize) -> Vec<Range<u64>> {
        let missing = self.missing(wanted);
        let is_wanted = |range: &Range<u64>| range.start < missing.end && missing.start < range.end;
        let Some(first) = self.announced.iter().position(is_wanted) else { return Vec::new() };
        let unused_bytes: u64 =
            self.kept.iter().map(|run| run.unused()).map(|part| part.end - part.start).sum();
        let room_bytes = self.limits.bytes.saturating_sub(unused_bytes);
        // If several threads read, each has a share.
        let room_bytes = room_bytes.clamp(self.limits.bytes / 4, self.limits.bytes / 2);
        let (mut taken, mut taken_bytes) = (Vec::new(), 0u64);
        while let Some(next) = self.announced.get(first) {
            taken_bytes = taken_bytes.saturating_add(next.end - next.start);
            if !taken.is_empty() && !is_wanted(next) && (taken_bytes > room_bytes || taken.len() >= count) {
                break;
            }
            taken.extend(self.announced.remove(first));
        }
        // Wanted bytes that nobody announced.
        let mut at = missing.start;
        let mut wanted: Vec<Range<u64>> = taken.iter().filter(|range| is_wanted(range)).cloned().collect();
        wanted.sort_unstable_by_key(|range| range.start);
        for range in wanted {
            if at < range.start {
                taken.push(at..range.start);
            }
            at = range.end;
        }
        if at < missing.end {
            taken.push(at..missing.end);
        }
        taken
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "these are lists of ranges of bytes")]
mod tests {
    use super::*;

    fn with_bytes(bytes: u64) -> Runs {
        Runs::new(Limits { unannounced: 2, bytes })
    }

    fn keep_announced(runs: &mut Runs, range: Range<u8>) {
        runs.keep_announced(u64::from(range.start), range.collect());
    }

    fn read(runs: &mut Runs, range: Range<u64>) -> Option<Vec<u8>> {
        let mut buf = vec![0; (range.end - range.start) as usize];
        runs.copy(&mut buf, &range).then_some(buf)
    }

    #[test]
    fn announced_ranges_are_taken_once_however_they_overlap() {
        let mut runs = with_bytes(1000);
        keep_announced(&mut runs, 20..30);
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
    fn wanted_bytes_in_several_ranges_and_runs_are_read_once() {
        let mut runs = with_bytes(1000);
        [0..10, 10..20, 30..40, 40..50].into_iter().for_each(|range| runs.announce(range));
        assert_eq!(runs.take_announced(&(8..12), 1), [0..10, 10..20]);
        keep_announced(&mut runs, 0..10);
        keep_announced(&mut runs, 10..20);
        assert_eq!(read(&mut runs, 8..12), Some(vec![8, 9, 10, 11]));
        // Its beginning is kept, and a part was not announced.
        assert_eq!(runs.take_announced(&(15..35), 1), [30..40, 20..30]);
        keep_announced(&mut runs, 20..30);
        keep_announced(&mut runs, 30..40);
        assert_eq!(read(&mut runs, 15..35), Some((15..35).collect()));
        assert_eq!(runs.take_announced(&(45..60), 1), [40..50, 50..60]);
        assert_eq!(runs.take_announced(&(45..60), 1), []);
    }

    #[test]
    fn no_more_is_taken_than_is_kept() {
        let mut runs = with_bytes(64);
        (0..20).for_each(|at| runs.announce(at * 8..at * 8 + 8));
        // A half of what is kept, so that another thread has room.
        assert_eq!(runs.take_announced(&(1..2), 256), [0..8, 8..16, 16..24, 24..32]);
        (0..4).for_each(|at| keep_announced(&mut runs, at * 8..at * 8 + 8));
        assert_eq!(runs.take_announced(&(33..34), 256), [32..40, 40..48, 48..56, 56..64]);
        (4..8).for_each(|at| keep_announced(&mut runs, at * 8..at * 8 + 8));
        assert_eq!(runs.take_announced(&(65..66), 256), [64..72, 72..80]);
        assert_eq!(runs.take_announced(&(81..82), 1), [80..88]);
        assert_eq!(runs.take_announced(&(85..100), 1), [88..96, 96..104, 85..88]);
    }

    #[test]
    fn announced_run_that_was_not_used_is_announced_again_when_it_is_dropped() {
        let mut runs = with_bytes(20);
        keep_announced(&mut runs, 0..10);
        keep_announced(&mut runs, 10..20);
        assert_eq!(read(&mut runs, 2..6), Some(vec![2, 3, 4, 5]));
        assert_eq!(read(&mut runs, 10..20), Some((10..20).collect()));
        // The used one goes first.
        keep_announced(&mut runs, 30..40);
        assert_eq!((read(&mut runs, 10..12), read(&mut runs, 0..2)), (None, Some(vec![0, 1])));
        keep_announced(&mut runs, 50..60);
        assert_eq!(runs.announced, [6..10]);
        assert_eq!((read(&mut runs, 6..8), read(&mut runs, 31..32)), (None, Some(vec![31])));
    }

    #[test]
    fn run_that_will_be_read_again_is_kept_until_then() {
        let mut runs = with_bytes(20);
        keep_announced(&mut runs, 0..10);
        assert_eq!(read(&mut runs, 0..10), Some((0..10).collect()));
        runs.announce(0..10);
        assert_eq!(runs.announced, []);
        keep_announced(&mut runs, 10..20);
        assert_eq!(read(&mut runs, 10..20), Some((10..20).collect()));
        keep_announced(&mut runs, 20..30);
        assert_eq!((read(&mut runs, 0..10), read(&mut runs, 10..11)), (Some((0..10).collect()), None));
    }

    #[test]
    fn runs_that_were_not_announced_are_few_and_only_dropped() {
        let mut runs = with_bytes(1000);
        (0..4u64).for_each(|at| runs.keep(at * 10, Bytes::from_static(&[7; 10])));
        assert_eq!((read(&mut runs, 10..11), read(&mut runs, 25..35)), (None, Some(vec![7; 10])));
        assert_eq!(runs.announced, []);
        assert_eq!(runs.kept_bytes, 20);
    }

    #[test]
    fn oldest_announcements_make_room_for_new_ones() {
        let mut runs = with_bytes(1 << 20);
        let count = MAX_ANNOUNCED as u64 + 5;
        (0..count).for_each(|at| runs.announce(at * 8..at * 8 + 4));
        assert_eq!(runs.announced.len(), MAX_ANNOUNCED);
        assert_eq!(runs.take_announced(&(0..4), 1), []);
        assert_eq!(runs.take_announced(&(count * 8 - 8..count * 8 - 6), 1), [count * 8 - 8..count * 8 - 4]);
    }
}
