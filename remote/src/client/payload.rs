//! The bytes of an object that is put, and how many of them are on their way.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::PutPayload;

use super::attempts::transfer_time;
use super::failure::Failure;

/// How many bytes there are from one mark to the next.
const STEP_BYTES: usize = 64 << 10;

/// The length of a mark.
const MARK_BYTES: usize = 16;

/// How much the sockets of both sides may hold. A server that reads nothing lets a client send this much at most.
const SOCKET_BYTES: u64 = 8 << 20;

/// How often the progress is looked at.
const TICK: Duration = Duration::from_millis(100);

/// The bytes of an object, in pieces.
///
/// No library says how much it has sent. But it holds a clone of each piece that waits to be sent. So among the pieces
/// are *marks*: a few bytes each, copied, so that no other reference to their memory exists. The first mark that has a clone is
/// about to be sent.
#[derive(Debug)]
pub(super) struct Payload {
    /// As they were given to the last attempt.
    pieces: Mutex<PutPayload>,
    size_bytes: u64,
    /// For each mark, which piece it is, and how many bytes come before it.
    marks: Vec<(usize, u64)>,
    progress: Mutex<Progress>,
}

/// The progress of all attempts together.
#[derive(Debug, Default)]
struct Progress {
    most_bytes: u64,
    /// How long attempts took to get further than any earlier one.
    time: Duration,
}

impl Payload {
    pub(super) fn new(parts: &[Bytes]) -> Self {
        let (mut pieces, mut marks, mut size_bytes) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let mut rest = part.clone();
            while rest.len() > STEP_BYTES {
                let step = rest.split_to(STEP_BYTES - MARK_BYTES);
                size_bytes += step.len() as u64;
                pieces.push(step);
                marks.push((pieces.len(), size_bytes));
                let mark = Bytes::copy_from_slice(&rest.split_to(MARK_BYTES));
                size_bytes += mark.len() as u64;
                pieces.push(mark);
            }
            size_bytes += rest.len() as u64;
            pieces.push(rest);
        }
        let pieces = Mutex::new(pieces.into_iter().collect());
        Payload { pieces, size_bytes, marks, progress: Mutex::default() }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the pieces for an attempt, with new marks: a connection that was given up may still hold clones of others.
    pub(super) fn pieces(&self) -> PutPayload {
        let mut last = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pieces = last.as_ref().to_vec();
        for (at, _) in &self.marks {
            if let Some(mark) = pieces.get_mut(*at) {
                *mark = Bytes::copy_from_slice(mark);
            }
        }
        *last = pieces.into_iter().collect();
        last.clone()
    }

    /// Returns how long attempts made progress.
    pub(super) fn progress_time(&self) -> Duration {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).time
    }

    /// Returns how many bytes come before the first mark that waits to be sent. `None` if none waits.
    fn sent_bytes(&self) -> Option<u64> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pieces = pieces.as_ref();
        let waits = |at: usize| pieces.get(at).is_some_and(|mark| !mark.is_unique());
        self.marks.iter().find(|(at, _)| waits(*at)).map(|(_, before_bytes)| *before_bytes)
    }

    /// Waits for one attempt, and ends it if nothing was sent for the time `stall`. What is in the sockets gets the time that
    /// it needs at the speed so far. If that is not known, it gets more than `stall` if it is long, and at most half of
    /// `left`: then another attempt is possible.
    pub(super) async fn watch<T>(
        &self,
        (stall, left): (Duration, Duration),
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let tick = TICK.min(stall / 4).max(Duration::from_millis(1));
        let mut attempt = pin!(attempt);
        let start = Instant::now();
        let (mut sent, mut most_bytes, mut since, mut counted) = (None, 0, start, start);
        loop {
            if let Ok(result) = tokio::time::timeout(tick, attempt.as_mut()).await {
                return result;
            }
            let (before, now) = (sent, Instant::now());
            sent = self.sent_bytes();
            if sent != before {
                since = now;
            }
            most_bytes = sent.unwrap_or_default().max(most_bytes);
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            if most_bytes > progress.most_bytes.max(SOCKET_BYTES) {
                progress.most_bytes = most_bytes;
                progress.time += now - counted;
                counted = now;
            }
            drop(progress);
            let limit = match sent {
                Some(_) => stall,
                None if most_bytes > SOCKET_BYTES => {
                    stall + (since - start).mul_f64(SOCKET_BYTES as f64 / most_bytes as f64)
                }
                None => (stall + transfer_time(self.size_bytes.min(SOCKET_BYTES))).min((left / 2).max(stall)),
            };
            if now - since >= limit {
                return Err(Failure::timed_out(now - since));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_bytes_and_their_clones_tell_what_waits() {
        for length in [0, 1, STEP_BYTES, STEP_BYTES + 1, 5 * STEP_BYTES, 5 * STEP_BYTES + 7] {
            let bytes: Bytes = (0..length).map(|at| (at % 251) as u8).collect();
            let payload = Payload::new(&[bytes.clone(), Bytes::from_static(b"end")]);
            assert_eq!(payload.size_bytes(), length as u64 + 3);
            assert_eq!(Bytes::from(payload.pieces()), [&bytes[..], b"end"].concat());
            assert_eq!(payload.sent_bytes(), None);
            let earlier = payload.pieces().as_ref().to_vec();
            let pieces = payload.pieces();
            for &(at, before_bytes) in &payload.marks {
                let clone = pieces.as_ref()[at].clone();
                assert_eq!(payload.sent_bytes(), Some(before_bytes));
                assert_eq!(clone, earlier[at]);
                assert_eq!(clone, bytes.slice(before_bytes as usize..before_bytes as usize + MARK_BYTES));
            }
            assert_eq!(payload.marks.len(), length.saturating_sub(1) / STEP_BYTES);
        }
    }
}
