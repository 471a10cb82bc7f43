//! Why a try of a push or a pull ended.

use stridemap::{Error, ErrorKind, Result};

/// How often a push or a pull is tried, if other processes change the store meanwhile.
const MAX_TRIES: u32 = 5;

/// Why a try ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Another process committed to the local store or collected there. A try that starts from what the store has now may
    /// succeed, or finds out why it cannot.
    Overtaken(Error),
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(e: Error) -> Self {
        Ended::Failed(e)
    }
}

impl Ended {
    /// Takes a conflict for one with another process.
    pub(crate) fn by_others(e: Error) -> Self {
        match e.kind() {
            ErrorKind::Conflict => Ended::Overtaken(e),
            _ => Ended::Failed(e),
        }
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Ended::Overtaken(e) | Ended::Failed(e) => e,
        }
    }

    pub(crate) fn context(self, context: &str) -> Self {
        match self {
            Ended::Overtaken(e) => Ended::Overtaken(e.context(context)),
            Ended::Failed(e) => Ended::Failed(e.context(context)),
        }
    }
}

/// Repeats what other processes made impossible, a few times.
pub(crate) fn repeat<T>(mut once: impl FnMut() -> Result<T, Ended>) -> Result<T> {
    for _ in 1..MAX_TRIES {
        match once() {
            Err(Ended::Overtaken(_)) => {}
            ended => return ended.map_err(Ended::into_error),
        }
    }
    once().map_err(Ended::into_error)
}
