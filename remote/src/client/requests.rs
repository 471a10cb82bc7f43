//! Counts of what was sent and received.

use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Get,
    Head,
    Put,
    Delete,
    List,
}

/// How many requests a [`Client`](super::Client) and its clones have sent, each attempt counted, and how many bytes of
/// objects they sent and received. A listing counts as one request, although a server sends it in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requests {
    /// Requests for the bytes of an object, or of a range of it.
    pub get: u64,
    /// Requests for the length and time of an object.
    pub head: u64,
    /// Requests to write an object.
    pub put: u64,
    /// Requests to delete an object.
    pub delete: u64,
    /// Listings.
    pub list: u64,
    /// Bytes of objects in requests to write them, also of those that failed.
    pub sent_bytes: u64,
    /// Bytes of objects that were received, also by attempts that failed later.
    pub received_bytes: u64,
}

impl Requests {
    /// Returns the number of requests of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.get, self.head, self.put, self.delete, self.list].into_iter().fold(0, u64::saturating_add)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    kinds: [AtomicU64; 5],
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, kind: Kind) {
        let [get, head, put, delete, list] = &self.kinds;
        let counter = match kind {
            Kind::Get => get,
            Kind::Head => head,
            Kind::Put => put,
            Kind::Delete => delete,
            Kind::List => list,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn total(&self) -> Requests {
        let [get, head, put, delete, list] =
            [0, 1, 2, 3, 4].map(|kind: usize| self.kinds[kind].load(Ordering::Relaxed));
        let sent_bytes = self.sent_bytes.load(Ordering::Relaxed);
        let received_bytes = self.received_bytes.load(Ordering::Relaxed);
        Requests { get, head, put, delete, list, sent_bytes, received_bytes }
    }
}
