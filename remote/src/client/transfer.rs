//! Requests of a connection, and their single attempts.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, PutMode, PutOptions};

use super::attempts::{self, Failed, Pace, Volume};
use super::failure::{Failure, Trouble};
use super::object::{Object, ObjectInfo, Put, Version};
use super::payload::Payload;
use super::redact::Secrets;
use super::requests::{Counters, Kind};

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
        let length = range.end.saturating_sub(range.start);
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let failed = match self.get(name, options, length).await {
            Ok(object) => return Ok(object.bytes),
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

    /// Waits for the next part of an answer.
    async fn wait<T>(&self, part: impl Future<Output = T>) -> Result<T, Failure> {
        let limit: Duration = self.pace.attempt;
        tokio::time::timeout(limit, part).await.map_err(|_| Failure::timed_out(limit))
    }

    async fn get_once(
        &self,
        path: &ObjectPath,
        options: &GetOptions,
        limit_bytes: u64,
        volume: &Volume<'_>,
    ) -> Result<Object, Failure> {
        self.counters.count(Kind::Get);
        let answer = self.wait(self.store.get_opts(path, options.clone())).await?;
        let answer = answer.map_err(|e| self.failure(&e))?;
        let (meta, range) = (answer.meta.clone(), answer.range.clone());
        if let Some(GetRange::Bounded(expected)) = &options.range
            && range != *expected
        {
            return Err(beyond_end(meta.size, expected));
        }
        let length = range.end.saturating_sub(range.start);
        if length > limit_bytes {
            let text = format!("it has {length} bytes, and at most {limit_bytes} are read");
            return Err(Failure::new(Trouble::TooLong, text));
        }
        let mut pieces = answer.into_stream();
        let mut bytes = Pieces::default();
        while let Some(piece) = self.wait(pieces.next()).await? {
            let piece = piece.map_err(|e| self.failure(&e))?;
            self.counters.count_received(piece.len());
            volume.count(piece.len() as u64);
            bytes.push(piece, length)?;
        }
        let bytes = bytes.finish(length)?;
        Ok(Object { bytes, version: Version::of_object(&meta), modified: meta.last_modified.into() })
    }

    async fn list_once(&self, path: &ObjectPath, volume: &Volume<'_>) -> Result<Vec<ObjectInfo>, Failure> {
        self.counters.count(Kind::List);
        let above = match self.prefix.as_str() {
            "" => 0,
            prefix => prefix.len() + 1,
        };
        let mut listed = Vec::new();
        let mut found = self.store.list(Some(path));
        while let Some(meta) = self.wait(found.next()).await? {
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

/// The pieces of an answer. One piece is not copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    all: Option<BytesMut>,
}

impl Pieces {
    fn push(&mut self, piece: Bytes, length: u64) -> Result<(), Failure> {
        let received = self.all.as_ref().map_or(self.first.len(), BytesMut::len);
        if (received as u64).saturating_add(piece.len() as u64) > length {
            return Err(Failure::new(
                Trouble::Cut,
                format!("more than the announced {length} bytes arrived"),
            ));
        }
        if let Some(all) = &mut self.all {
            all.extend_from_slice(&piece);
        } else if self.first.is_empty() {
            self.first = piece;
        } else {
            let mut all = BytesMut::with_capacity(usize::try_from(length).unwrap_or(0));
            all.extend_from_slice(&self.first);
            all.extend_from_slice(&piece);
            self.all = Some(all);
        }
        Ok(())
    }

    fn finish(self, length: u64) -> Result<Bytes, Failure> {
        let bytes = self.all.map_or(self.first, BytesMut::freeze);
        match bytes.len() as u64 == length {
            true => Ok(bytes),
            false => {
                let text = format!("only {} of {length} bytes arrived", bytes.len());
                Err(Failure::new(Trouble::Cut, text))
            }
        }
    }
}

fn beyond_end(length: u64, range: &Range<u64>) -> Failure {
    let text = format!("it has {length} bytes, and bytes {} to {} are needed", range.start, range.end);
    Failure::new(Trouble::BeyondEnd, text)
}

fn info(name: String, meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo { name, length_bytes: meta.size, modified: meta.last_modified.into() }
}
