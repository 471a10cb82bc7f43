//! The bytes of an answer, and of the answers to later attempts that go on where it ended.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use super::failure::{Failure, Trouble};
use super::object::Version;
use super::runtime::PieceSender;

/// What was received so far.
#[derive(Default)]
pub(super) struct Received {
    state: Mutex<State>,
    /// Where the pieces go. `None` if they are kept.
    sender: Option<PieceSender>,
}

#[derive(Default)]
struct State {
    received_bytes: u64,
    /// How many bytes are received in the end.
    length_bytes: u64,
    /// What the bytes are of.
    version: Option<Version>,
    /// One piece is not copied.
    first: Bytes,
    all: Option<BytesMut>,
}

impl State {
    fn keep(&mut self, piece: Bytes) {
        if let Some(all) = &mut self.all {
            all.extend_from_slice(&piece);
        } else if self.first.is_empty() {
            self.first = piece;
        } else {
            let mut all = BytesMut::with_capacity(usize::try_from(self.length_bytes).unwrap_or(0));
            all.extend_from_slice(&std::mem::take(&mut self.first));
            all.extend_from_slice(&piece);
            self.all = Some(all);
        }
    }
}

impl Received {
    pub(super) fn sending(sender: PieceSender) -> Self {
        Received { state: Mutex::default(), sender: Some(sender) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn received_bytes(&self) -> u64 {
        self.state().received_bytes
    }

    /// Begins to receive an answer with which there are `length_bytes` in all. What is kept must be of one version of the
    /// object: otherwise it is dropped, and the next attempt begins anew. What is sent is of an object with a digest, which
    /// its reader compares, and servers may name its versions differently.
    pub(super) fn begin(&self, version: Version, length_bytes: u64) -> Result<(), Failure> {
        let mut state = self.state();
        let is_other = state.received_bytes > 0 && state.version.as_ref() != Some(&version);
        if is_other && self.sender.is_none() {
            *state = State::default();
            let text = "the object was replaced while it was read".to_owned();
            return Err(Failure::new(Trouble::Cut, text));
        }
        (state.version, state.length_bytes) = (Some(version), length_bytes);
        Ok(())
    }

    pub(super) fn push(&self, piece: Bytes) -> Result<(), Failure> {
        let mut state = self.state();
        let received_bytes = state.received_bytes.saturating_add(piece.len() as u64);
        if received_bytes > state.length_bytes {
            let text = format!("more than the announced {} bytes arrived", state.length_bytes);
            return Err(Failure::new(Trouble::Cut, text));
        }
        state.received_bytes = received_bytes;
        match &self.sender {
            None => state.keep(piece),
            Some(sender) if sender.send(piece) => {}
            Some(_) => return Err(Failure::new(Trouble::Other, "its reader has ended".to_owned())),
        }
        Ok(())
    }

    pub(super) fn check_whole(&self) -> Result<(), Failure> {
        let state = self.state();
        if state.received_bytes == state.length_bytes {
            return Ok(());
        }
        let text = format!("only {} of {} bytes arrived", state.received_bytes, state.length_bytes);
        Err(Failure::new(Trouble::Cut, text))
    }

    /// Takes what was kept.
    pub(super) fn take(&self) -> Bytes {
        let state = std::mem::take(&mut *self.state());
        state.all.map_or(state.first, BytesMut::freeze)
    }
}
