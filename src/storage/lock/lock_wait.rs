//! How long to wait for a lock, and the reports of a long wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::disk::DiskFile;

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockWait {
    pub(crate) timeout: Duration,
    pub(crate) on_wait: Option<OnWait>,
}

/// What is called during a wait of at least `after`, with the processes that hold the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnWait {
    pub(crate) after: Duration,
    pub(crate) callback: fn(&[u32]),
}

/// The interval between two reports. Finding the holders of a lock reads every lock of the system.
const INTERVAL: Duration = Duration::from_millis(100);

impl LockWait {
    /// Returns this wait without the part that has passed.
    pub(crate) fn without(self, passed: Duration) -> Self {
        LockWait { timeout: self.timeout.saturating_sub(passed), ..self }
    }

    pub(crate) fn at_most(self, timeout: Duration) -> Self {
        LockWait { timeout: self.timeout.min(timeout), ..self }
    }
}

/// The reports of one wait.
pub(crate) struct WaitReports(Option<(OnWait, Instant)>);

impl WaitReports {
    pub(crate) fn begin(wait: LockWait) -> Self {
        WaitReports(
            wait.on_wait.and_then(|on_wait| Some((on_wait, Instant::now().checked_add(on_wait.after)?))),
        )
    }

    /// Returns the time until the next report, if there are any.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|(_, next)| next.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_due(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Reports the processes that hold the lock of a file.
    pub(crate) fn send(&mut self, file: &Arc<dyn DiskFile>) {
        if let Some((on_wait, next)) = &mut self.0 {
            (on_wait.callback)(&file.lock_holders());
            *next = Instant::now() + INTERVAL;
        }
    }
}
