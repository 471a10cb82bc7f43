//! Follow: pulls whenever the remote changes.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use stridemap::{Error, ErrorKind, Result, StoreOptions};

use crate::client::Version;
use crate::ended::Ended;
use crate::progress::Progress;
use crate::remote::MAX_HEAD_BYTES;
use crate::{Pulled, Remote};

/// The longest pause after errors.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The longest pause while nothing was pushed yet.
const MAX_PAUSE_BEFORE_PUSH: Duration = Duration::from_secs(4);

/// How often a pause asks whether to go on.
const STEP: Duration = Duration::from_millis(50);

/// What a follower has done or met.
#[derive(Debug)]
#[non_exhaustive]
pub enum Followed {
    /// The local store has a new generation.
    Pulled(Pulled),
    /// A pull failed in a way that may pass, and is tried again after the pause.
    Failed(Error, Duration),
    /// Nothing has changed. This is also reported during pauses, at least every 50 ms or so.
    Waiting,
}

impl Remote {
    /// Pulls now, and then whenever HEAD of the remote changes. HEAD is asked for every `interval`; after errors that may
    /// pass, the pause doubles up to 30 seconds, or up to 4 while there is no store at the URL, unless the `interval` is
    /// longer. If another process collects in the local store or commits there during a pull, the next one is after the
    /// `interval`. Ends when `report` returns false.
    ///
    /// # Errors
    /// Those of [`pull`](Self::pull) that do not pass by waiting, such as `Conflict` if the local store has commits of its
    /// own; errors of `progress`.
    pub fn follow(
        &self,
        path: &Path,
        options: &StoreOptions,
        interval: Duration,
        progress: &Progress<'_>,
        report: &mut dyn FnMut(Followed) -> Result<bool>,
    ) -> Result<()> {
        let mut known: Option<Version> = None;
        let mut pause = interval;
        loop {
            let step = self.follow_once(path, options, progress, &mut known);
            let goes_on = match step {
                Ok(Some(pulled)) => {
                    pause = interval;
                    report(Followed::Pulled(pulled))?
                }
                Ok(None) => {
                    pause = interval;
                    report(Followed::Waiting)?
                }
                // What others did to the local store does not hinder the next try, unless it is a commit, which that finds.
                Err(Ended::Overtaken(e)) => {
                    (known, pause) = (None, interval);
                    report(Followed::Failed(e, pause))?
                }
                Err(Ended::Failed(e)) if may_pass(&e) => {
                    known = None;
                    let most =
                        if e.kind() == ErrorKind::NotFound { MAX_PAUSE_BEFORE_PUSH } else { MAX_PAUSE };
                    pause = pause.max(Duration::from_millis(500)).saturating_mul(2).min(most.max(interval));
                    report(Followed::Failed(e, pause))?
                }
                Err(Ended::Failed(e)) => return Err(e),
            };
            if !goes_on {
                return Ok(());
            }
            let until = Instant::now() + pause;
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            {
                thread::sleep(left.min(STEP));
                if !report(Followed::Waiting)? {
                    return Ok(());
                }
            }
        }
    }

    /// Pulls if HEAD has changed.
    fn follow_once(
        &self,
        path: &Path,
        options: &StoreOptions,
        progress: &Progress<'_>,
        known: &mut Option<Version>,
    ) -> Result<Option<Pulled>, Ended> {
        let head = match known {
            Some(version) => self.client.get_if_changed("HEAD", version, MAX_HEAD_BYTES)?,
            None => self.client.get("HEAD", MAX_HEAD_BYTES)?,
        };
        let Some(head) = head else {
            return if known.is_some() { Ok(None) } else { Err(self.not_found().into()) };
        };
        let pulled = self.pull_once(path, options, progress)?;
        *known = Some(head.version);
        let is_new = pulled.previous != Some(pulled.generation) || pulled.received_bytes > 0;
        Ok(is_new.then_some(pulled))
    }
}

/// Whether an error may be gone at the next try: the network, a lock, or a remote that does not exist yet.
fn may_pass(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Busy | ErrorKind::Io | ErrorKind::NotFound)
}
