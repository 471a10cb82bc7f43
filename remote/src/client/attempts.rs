//! Attempts of one request, each within a time limit, with pauses that grow.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::failure::{Failure, Trouble};
use super::payload::Payload;

/// The time limits of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The time for a request of few bytes, with all its attempts.
    pub(super) timeout: Duration,
    /// The time for one attempt, and for each wait for more bytes.
    pub(super) attempt: Duration,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
}

/// A transfer gets as much more time as it needs at this speed. A slow connection may be shared by several transfers of
/// 64 MiB.
const SLOWEST_BYTES_PER_SECOND: u64 = 64 << 10;

/// How long a server is tried that has never answered: its name may be wrong.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// Returns the time for so many bytes on a slow connection.
pub(super) fn transfer_time(size_bytes: u64) -> Duration {
    Duration::from_secs(size_bytes / SLOWEST_BYTES_PER_SECOND)
}

impl Pace {
    pub(super) fn new(timeout: Duration) -> Self {
        Pace {
            timeout,
            attempt: timeout.min(Duration::from_secs(30)),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
        }
    }

    /// Returns a random pause of up to twice the previous maximum ("full jitter"), so that many clients do not come
    /// back at the same time.
    fn pause(&self, failed_attempts: u32) -> Duration {
        let factor = 1u32.checked_shl(failed_attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = self.first_pause.saturating_mul(factor).min(self.longest_pause);
        longest.mul_f64(fastrand::f64())
    }
}

/// How much a request transfers, which gives it more time.
#[derive(Debug)]
pub(super) struct Volume<'a> {
    /// At most, by one attempt.
    limit_bytes: u64,
    /// By all attempts.
    moved_bytes: AtomicU64,
    /// What is sent, if it shows how much of it was.
    payload: Option<&'a Payload>,
}

impl<'a> Volume<'a> {
    /// For a request of few bytes.
    pub(super) fn small() -> Self {
        Self::received(0)
    }

    /// For a request that sends a payload to a server.
    pub(super) fn sent(payload: &'a Payload) -> Self {
        Volume { payload: Some(payload), ..Self::small() }
    }

    /// For a request that writes this many bytes to a directory, without saying how many it has written.
    pub(super) fn written(size_bytes: u64) -> Self {
        Volume { limit_bytes: size_bytes, moved_bytes: AtomicU64::new(size_bytes), payload: None }
    }

    /// For a request that receives at most this many bytes, and limits each wait for more of them itself.
    pub(super) fn received(limit_bytes: u64) -> Self {
        Volume { limit_bytes, moved_bytes: AtomicU64::new(0), payload: None }
    }

    /// Returns how much more time all attempts get.
    fn time(&self) -> Duration {
        match self.payload {
            Some(payload) => payload.progress_time(),
            None => transfer_time(self.moved_bytes.load(Ordering::Relaxed)),
        }
    }

    /// Makes one attempt. `left` is the rest of the time for all attempts.
    async fn limit<T>(
        &self,
        (attempt_time, left): (Duration, Duration),
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let stall = attempt_time.min(left);
        if let Some(payload) = self.payload {
            return payload.watch((stall, left), attempt).await;
        }
        let limit = stall.saturating_add(transfer_time(self.limit_bytes));
        tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| Err(Failure::timed_out(limit)))
    }

    pub(super) fn count(&self, size_bytes: u64) {
        self.moved_bytes.fetch_add(size_bytes, Ordering::Relaxed);
    }
}

/// What is left after the last attempt.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) failure: Failure,
    attempts: u32,
    elapsed: Duration,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Failed { failure, attempts: 1, elapsed: Duration::ZERO }
    }
}

impl Failed {
    /// Changes what is wrong, where more is known about it.
    pub(super) fn with(mut self, trouble: Trouble) -> Self {
        self.failure.trouble = trouble;
        self
    }

    /// Says how often it was tried, for a message.
    pub(super) fn tried(&self) -> String {
        match self.attempts {
            1 => String::new(),
            attempts => format!(" ({attempts} attempts in {:.1} s)", self.elapsed.as_secs_f64()),
        }
    }
}

/// Makes attempts until one succeeds, fails for good, or time is up. `has_answered` is shared by all requests of a client.
pub(super) async fn repeat<T, F: Future<Output = Result<T, Failure>>>(
    pace: Pace,
    volume: &Volume<'_>,
    has_answered: &AtomicBool,
    attempt: impl Fn() -> F,
) -> Result<T, Failed> {
    let start = Instant::now();
    let allowed = || pace.timeout.saturating_add(volume.time());
    let mut attempts = 0;
    loop {
        attempts += 1;
        let left = allowed().saturating_sub(start.elapsed());
        let failure = match volume.limit((pace.attempt, left), attempt()).await {
            Ok(value) => {
                has_answered.store(true, Ordering::Relaxed);
                return Ok(value);
            }
            Err(failure) => failure,
        };
        if failure.trouble.is_answer() {
            has_answered.store(true, Ordering::Relaxed);
        }
        let pause = pace.pause(attempts);
        let mut allowed = allowed();
        if failure.trouble == Trouble::Unreachable && !has_answered.load(Ordering::Relaxed) {
            allowed = allowed.min(FIRST_ANSWER);
        }
        let elapsed = start.elapsed();
        if !failure.trouble.is_transient() || elapsed.saturating_add(pause) >= allowed {
            return Err(Failed { failure, attempts, elapsed });
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_are_random() {
        let pace = Pace::new(Duration::from_secs(60));
        for attempts in 1..100 {
            let longest = pace.first_pause * 2u32.pow((attempts - 1).min(10));
            assert!(pace.pause(attempts) <= longest.min(pace.longest_pause));
        }
        let some: Vec<Duration> = (0..100).map(|_| pace.pause(20)).collect();
        assert!(some.iter().max() > Some(&Duration::from_secs(4)));
        assert!(some.iter().min() < Some(&Duration::from_secs(1)));
    }
}
