//! Random choices for tests, determined by a seed.
#![allow(dead_code, reason = "each test binary uses some of them")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A random number generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// Returns the seed in `STRIDEMAP_TEST_SEED`, or else one from the clock, and prints it. The same seed repeats the
    /// choices of a test.
    pub(crate) fn seed(test: &str) -> u64 {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into();
        let seed =
            std::env::var("STRIDEMAP_TEST_SEED").map_or_else(|_| clock(), |seed| seed.parse().unwrap());
        println!("{test}: STRIDEMAP_TEST_SEED={seed}");
        seed
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(crate) fn below<N: TryInto<u64> + TryFrom<u64> + Default>(&mut self, end: N) -> N {
        let number = self.0.u64(..end.try_into().unwrap_or_default().max(1));
        number.try_into().unwrap_or_default()
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    /// Returns a random duration below `end` milliseconds.
    pub(crate) fn millis(&mut self, end: u64) -> Duration {
        Duration::from_micros(self.below(end * 1000))
    }
}

/// Maps each number to a different one, whose bits look random.
pub(crate) fn mixed(number: u64) -> u64 {
    Random::new(number).next()
}
