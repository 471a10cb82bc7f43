//! The durations of operations.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The durations of many operations.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn time<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = act();
        self.0.push(began.elapsed().as_nanos() as u64);
        done
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn save(&self, path: &Path) {
        let bytes: Vec<u8> = self.0.iter().flat_map(|nanos| nanos.to_le_bytes()).collect();
        fs::write(path, bytes).unwrap();
    }

    /// Adds the durations that another process saved.
    pub(crate) fn add_saved(&mut self, path: &Path) {
        let bytes = fs::read(path).unwrap();
        self.0.extend(bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())));
    }

    /// Returns the duration that this share of the operations did not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied().map_or(Duration::ZERO, Duration::from_nanos)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [0.5, 0.99, 1.].map(|share| self.quantile(share));
        write!(f, "{} times, p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}", self.count())
    }
}
