//! Requests of a connection, and their single attempts.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, PutMode, PutOptions};

use super::attempts::{self, Failed, Pace, Volume, transfer_time};
use super::failure::{Failure, Trouble};
use super::object::{Object, ObjectInfo, Put, Version};
use super::payload::Payload;
use super::received::Received;
use super::redact::Secrets;
use super::requests::{Counters, Kind};
use super::runtime::PieceSender;

/// A connection to a store: all that a request needs.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Before the names of all objects.
    pub(super) prefix: String,
    pub(super) secrets: Secrets,
    pub(super) counters: Counters,
    pub(super) pace: Pace,
    pub(super) has_answered: AtomicBool,
    /// A directory does not show how much of an object it has written.
    pub(super) is_directory: bool,
}

/// A listing of more objects is refused: it has to fit in memory.
const MAX_LISTED: usize = 4_000_000;

/// A listing gets time as if it transferred this much for each object.
const LISTED_SIZE_BYTES: u64 = 4 << 10;

impl Connection {
    pub(super) async fn get(
        &self,
        name: &str,
        options: GetOptions,
        limit_bytes: u64,
    ) -> Result<Object, Failed> {
        let (path, options) = (&self.path(name)?, &options);
        let volume = &Volume::received(limit_bytes);
        self.repeat(volume, || self.get_once(path, options, limit_bytes, volume)).await
    }

    /// Returns a range whose object must have it.
    pub(super) async fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, Failed> {
        let received = Received::default();
        self.receive_range(name, range, &received, false).await?;
        Ok(received.take())
    }

    /// Reads a range from the beginning of an object, usually to its end, and sends the pieces as they arrive.
    pub(super) async fn send(&self, name: &str, length: u64, to: PieceSender) -> Result<(), Failed> {
        self.receive_range(name, 0..length, &Received::sending(to), true).await
    }

    /// Receives a range. Each attempt goes on where the last one ended, so that a long range also arrives over a connection
    /// that breaks often. If the object probably `ends` with the range, it is asked for as a whole, which is less work for
    /// some servers.
    async fn receive_range(
        &self,
        name: &str,
        range: Range<u64>,
        received: &Received,
        ends: bool,
    ) -> Result<(), Failed> {
        let (path, length) = (&self.path(name)?, range.end.saturating_sub(range.start));
        let volume = &Volume::received(length);
        let attempt = || async {
            let rest = range.start.saturating_add(received.received_bytes())..range.end;
            if rest.is_empty() {
                return Ok(());
            }
            if ends && rest.start == 0 {
                match self.receive(path, &GetOptions::default(), received, (length, volume)).await {
                    Err(failure) if failure.trouble == Trouble::TooLong => {}
                    result => return result.map(drop),
                }
            }
            let options = GetOptions { range: Some(GetRange::Bounded(rest)), ..GetOptions::default() };
            self.receive(path, &options, received, (length, volume)).await.map(drop)
        };
        let failed = match self.repeat(volume, attempt).await {
            Ok(()) if received.received_bytes() < length => {
                return Err(beyond_end(received.received_bytes(), &range).into());
            }
            Ok(()) => return Ok(()),
            Err(failed) => failed,
        };
        // Not every store says that the range is the reason, and some say it without the length.
        if matches!(failed.failure.trouble, Trouble::Other | Trouble::BeyondEnd)
            && let Ok(info) = self.info(name).await
            && info.length_bytes < range.end
        {
            return Err(beyond_end(info.length_bytes, &range).into());
        }
        Err(failed)
    }

    pub(super) async fn put(&self, name: &str, parts: &[Bytes], mode: PutMode) -> Result<Put, Failed> {
        let (path, mode, payload) = (&self.path(name)?, &mode, &Payload::new(parts));
        let volume = match self.is_directory {
            true => Volume::written(payload.size_bytes()),
            false => Volume::sent(payload),
        };
        let put = || async {
            self.counters.count(Kind::Put);
            self.counters.count_sent(payload.size_bytes());
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            match self.store.put_opts(path, payload.pieces(), options).await {
                Ok(result) => Ok(Put::Written(Version::of_put(result))),
                Err(error) => Err(self.failure(&error)),
            }
        };
        match self.repeat(&volume, put).await {
            Err(failed) if failed.failure.trouble == Trouble::Unmet => Ok(Put::Exists),
            // S3 says so of an object that is to be replaced.
            Err(failed)
                if failed.failure.trouble == Trouble::Absent && matches!(mode, PutMode::Update(_)) =>
            {
                Ok(Put::Exists)
            }
            result => result,
        }
    }

    pub(super) async fn info(&self, name: &str) -> Result<ObjectInfo, Failed> {
        let path = &self.path(name)?;
        self.repeat(&Volume::small(), || self.info_once(name, path)).await
    }

    async fn info_once(&self, name: &str, path: &ObjectPath) -> Result<ObjectInfo, Failure> {
        self.counters.count(Kind::Head);
        let options = GetOptions { head: true, ..GetOptions::default() };
        let result = self.store.get_opts(path, options).await.map_err(|e| self.failure(&e))?;
        Ok(info(name.to_owned(), &result.meta))
    }

    pub(super) async fn delete(&self, name: &str) -> Result<(), Failed> {
        let path = &self.path(name)?;
        match self.repeat(&Volume::small(), || self.delete_once(path)).await {
            Err(failed) if failed.failure.trouble == Trouble::Absent => Ok(()),
            result => result,
        }
    }

    /// Deletes an object that was put at this time or before. Each attempt looks at it first: after an attempt whose answer
    /// was lost, someone else may have put it again. Returns what was found.
    pub(super) async fn delete_if_older(&self, name: &str, than: SystemTime) -> Result<ObjectInfo, Failed> {
        let path = &self.path(name)?;
        let deleted: Mutex<Option<ObjectInfo>> = Mutex::default();
        let known = || deleted.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = || async {
            let found = match self.info_once(name, path).await {
                Err(failure) if failure.trouble == Trouble::Absent => return known().take().ok_or(failure),
                found => found?,
            };
            if found.modified <= than {
                *known() = Some(found.clone());
                self.delete_once(path).await?;
            }
            Ok(found)
        };
        self.repeat(&Volume::small(), attempt).await
    }

    async fn delete_once(&self, path: &ObjectPath) -> Result<(), Failure> {
        self.counters.count(Kind::Delete);
        let one = path.clone();
        let mut deleted = self.store.delete_stream(futures_util::stream::iter([Ok(one)]).boxed());
        while let Some(result) = deleted.next().await {
            result.map_err(|e| self.failure(&e))?;
        }
        Ok(())
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, Failed> {
        let path = &self.path(prefix)?;
        let volume = &Volume::received(LISTED_SIZE_BYTES * MAX_LISTED as u64);
        self.repeat(volume, || self.list_once(path, volume)).await
    }

    fn path(&self, name: &str) -> Result<ObjectPath, Failure> {
        let joined = [self.prefix.as_str(), "/", name].concat();
        ObjectPath::parse(joined.trim_matches('/'))
            .map_err(|error| Failure::new(Trouble::Other, self.secrets.redact(&error.to_string())))
    }

    async fn repeat<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        volume: &Volume<'_>,
        attempt: impl Fn() -> F,
    ) -> Result<T, Failed> {
        attempts::repeat(self.pace, volume, &self.has_answered, attempt).await
    }

    fn failure(&self, error: &object_store::Error) -> Failure {
        Failure::of(error, &self.secrets)
    }

    /// Waits for the next part of an answer, which has at most this many bytes if it comes from a directory: they come at
    /// once, and a disk can be slow.
    async fn wait<T>(&self, size_bytes: u64, part: impl Future<Output = T>) -> Result<T, Failure> {
        let more = if self.is_directory { transfer_time(size_bytes) } else { Duration::ZERO };
        let limit: Duration = self.pace.attempt + more;
        tokio::time::timeout(limit, part).await.map_err(|_| Failure::timed_out(limit))
    }

    async fn get_once(
        &self,
        path: &ObjectPath,
        options: &GetOptions,
        limit_bytes: u64,
        volume: &Volume<'_>,
    ) -> Result<Object, Failure> {
        let received = Received::default();
        let meta = self.receive(path, options, &received, (limit_bytes, volume)).await?;
        Ok(Object {
            bytes: received.take(),
            version: Version::of_object(&meta),
            modified: meta.last_modified.into(),
        })
    }

    /// Makes one request, and adds its answer to what was received before, which together has at most `limit_bytes`.
    async fn receive(
        &self,
        path: &ObjectPath,
        options: &GetOptions,
        received: &Received,
        (limit_bytes, volume): (u64, &Volume<'_>),
    ) -> Result<ObjectMeta, Failure> {
        self.counters.count(Kind::Get);
        let answer = self.wait(0, self.store.get_opts(path, options.clone())).await?;
        let answer = answer.map_err(|e| self.failure(&e))?;
        let (meta, range) = (answer.meta.clone(), answer.range.clone());
        if let Some(GetRange::Bounded(expected)) = &options.range
            && range != *expected
        {
            return Err(beyond_end(meta.size, expected));
        }
        let length = received.received_bytes().saturating_add(range.end.saturating_sub(range.start));
        if length > limit_bytes {
            let text = format!("it has {length} bytes, and at most {limit_bytes} are read");
            return Err(Failure::new(Trouble::TooLong, text));
        }
        received.begin(Version::of_object(&meta), length)?;
        let mut pieces = answer.into_stream();
        while let Some(piece) = self.wait(range.end.saturating_sub(range.start), pieces.next()).await? {
            let piece = piece.map_err(|e| self.failure(&e))?;
            self.counters.count_received(piece.len());
            volume.count(piece.len() as u64);
            received.push(piece)?;
        }
        received.check_whole()?;
        Ok(meta)
    }

    async fn list_once(&self, path: &ObjectPath, volume: &Volume<'_>) -> Result<Vec<ObjectInfo>, Failure> {
        self.counters.count(Kind::List);
        let above = match self.prefix.as_str() {
            "" => 0,
            prefix => prefix.len() + 1,
        };
        let mut listed = Vec::new();
        let mut found = self.store.list(Some(path));
        while let Some(meta) = self.wait(0, found.next()).await? {
            let meta = meta.map_err(|e| self.failure(&e))?;
            volume.count(LISTED_SIZE_BYTES);
            if listed.len() == MAX_LISTED {
                let text = format!("there are more than {MAX_LISTED} objects");
                return Err(Failure::new(Trouble::TooLong, text));
            }
            if let Some(name) = meta.location.as_ref().get(above..) {
                listed.push(info(name.to_owned(), &meta));
            }
        }
        Ok(listed)
    }
}

fn beyond_end(length: u64, range: &Range<u64>) -> Failure {
    let text = format!("it has {length} bytes, and bytes {} to {} are needed", range.start, range.end);
    Failure::new(Trouble::BeyondEnd, text)
}

fn info(name: String, meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo { name, length_bytes: meta.size, modified: meta.last_modified.into() }
}
