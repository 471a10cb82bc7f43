//! Objects of a remote: blocking requests that are repeated within a time limit.
//!
//! This is the only code that knows object_store and tokio.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::{GetOptions, PutMode};
use stridemap::{Error, ErrorKind, Result, Rule};
use stridemap_format::Error as FormatError;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use object::{Object, ObjectInfo, Put, Version};
pub use requests::Requests;
pub use runtime::Check;

use address::{Address, Place};
use attempts::{Failed, Pace};
use failure::{Failure, Trouble};
use redact::Secrets;
use requests::Counters;
use runtime::Threads;
use stores::Opened;
use transfer::Connection;

mod address;
mod attempts;
mod failure;
#[cfg(feature = "simulation")]
pub mod faults;
mod file_store;
mod object;
mod payload;
mod received;
mod redact;
mod requests;
mod runtime;
mod settings;
mod stores;
mod transfer;
mod written_file;

/// The number of requests at a time, if none is set.
pub(crate) const DEFAULT_JOBS: usize = 8;

/// A connection to the objects below a URL. Clones share it, and its limit of requests at a time.
///
/// Each call blocks. A request that fails for a reason that may pass (no answer, a lost connection, a server that is
/// busy) is repeated until the timeout is over, with pauses that grow; the error then says how often it was tried. An
/// error is [`Io`](ErrorKind::Io) if the remote could not be reached or refused the request, and its
/// [`io_error`](Error::io_error) has a kind to match on. No error, location or `Debug` output has credentials.
///
/// ```
/// use std::time::Duration;
/// use stridemap_remote::{Client, Put};
///
/// let client = Client::open("memory://docs/model", Duration::from_secs(60))?;
/// let Put::Written(version) = client.put_new("HEAD", "one".into())? else { panic!("HEAD exists") };
/// assert_eq!(client.put_new("HEAD", "two".into())?, Put::Exists);
///
/// // Replaces what was read, and nothing else.
/// assert!(matches!(client.put_if_match("HEAD", "two".into(), &version)?, Put::Written(_)));
/// assert_eq!(client.put_if_match("HEAD", "three".into(), &version)?, Put::Exists);
/// # Ok::<(), stridemap::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    location: Arc<str>,
    is_read_only: bool,
    threads: Threads,
    check: Option<Check>,
    jobs: usize,
    /// One for each request that may send or receive bytes of objects.
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("location", &self.location).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a connection, without any request yet. `timeout` limits each request of few bytes with all its attempts.
    /// One that transfers more gets more time, as long as bytes move.
    ///
    /// URLs are `s3://bucket/path`, `gs://bucket/path`, `az://container/path`, `https://host/path` (read-only),
    /// `file:///absolute/path`, and `memory://name/path`, which is shared within the process. Credentials, region and
    /// endpoint come from the environment: the variables that begin with `AWS_`, `GOOGLE_` or `AZURE_`.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for another URL, one with a user name, a query or a fragment, for
    /// the directory of a local store, and for settings in the environment that are not valid or missing.
    pub fn open(url: &str, timeout: Duration) -> Result<Self> {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::open_with(url, timeout, variables)
    }

    /// Like [`open`](Self::open), with these variables instead of the environment. For tests.
    #[doc(hidden)]
    pub fn open_with(url: &str, timeout: Duration, variables: Vec<(String, String)>) -> Result<Self> {
        let address = Address::parse(url)?;
        let secrets = Secrets::of(&variables);
        settings::check(&address.place, &variables).map_err(|wrong| {
            Error::new(ErrorKind::InvalidArgument, format!("open {}: {wrong}", address.location))
        })?;
        check_directory(&address)?;
        let opened = stores::open(address.place, &variables).map_err(|error| {
            let failure = Failure::of(&error, &secrets);
            let text = format!("open {}: {}; see the environment variables", address.location, failure.text);
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        Self::connect(&address.location, opened, secrets, Pace::new(timeout))
    }

    fn connect(location: &str, opened: Opened, secrets: Secrets, pace: Pace) -> Result<Self> {
        let connection = Connection {
            store: opened.store,
            prefix: opened.prefix,
            secrets,
            counters: Counters::default(),
            pace,
            has_answered: AtomicBool::new(false),
            is_directory: opened.is_directory,
        };
        Ok(Client {
            connection: Arc::new(connection),
            location: location.into(),
            is_read_only: opened.is_read_only,
            threads: Threads::shared()?,
            check: None,
            jobs: DEFAULT_JOBS,
            permits: Arc::new(Semaphore::new(DEFAULT_JOBS)),
        })
    }

    /// Limits the number of requests at a time that send or receive bytes of objects, of this client and its later clones
    /// together: at least 1, and 8 by default. Others wait, which does not count towards their timeout.
    #[must_use]
    pub fn with_jobs(mut self, jobs: usize) -> Self {
        self.jobs = jobs.clamp(1, Semaphore::MAX_PERMITS);
        self.permits = Arc::new(Semaphore::new(self.jobs));
        self
    }

    /// Returns the number of requests that may run at a time.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs
    }

    /// Calls `check` many times a second while a request is waited for. An error of it ends the request, and is returned.
    #[must_use]
    pub fn with_check(mut self, check: Check) -> Self {
        self.check = Some(check);
        self
    }

    /// Returns the URL, without a trailing slash. It has no credentials.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns whether the remote can only be read, as one behind `https://`.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns what was sent and received so far, by this client and its clones.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.connection.counters.total()
    }

    /// Reads an object, or returns `None` if there is none with this name.
    ///
    /// # Errors
    ///
    /// [`LimitExceeded`](ErrorKind::LimitExceeded) if it is longer than `limit_bytes`,
    /// [`NotFound`](ErrorKind::NotFound) if there is no such bucket, and [`Io`](ErrorKind::Io).
    pub fn get(&self, name: &str, limit_bytes: u64) -> Result<Option<Object>> {
        self.get_with(name, limit_bytes, GetOptions::default())
    }

    /// Reads an object if it no longer has this version, and returns `None` if it has.
    ///
    /// A server that names no versions sends the object each time: compare the bytes.
    ///
    /// # Errors
    ///
    /// As those of [`get`](Self::get). An object that is gone is [`Corrupt`](ErrorKind::Corrupt).
    pub fn get_if_changed(&self, name: &str, version: &Version, limit_bytes: u64) -> Result<Option<Object>> {
        let options = GetOptions { if_none_match: version.e_tag.clone(), ..GetOptions::default() };
        let (owned, connection) = (name.to_owned(), Arc::clone(&self.connection));
        let result = self.transfer(async move { connection.get(&owned, options, limit_bytes).await })?;
        match result {
            // Some servers ignore the condition.
            Ok(object) if object.version == *version && version.e_tag.is_some() => Ok(None),
            Ok(object) => Ok(Some(object)),
            Err(failed) if failed.failure.trouble == Trouble::Unchanged => Ok(None),
            Err(failed) => Err(self.error(failed, "read", name)),
        }
    }

    fn get_with(&self, name: &str, limit_bytes: u64, options: GetOptions) -> Result<Option<Object>> {
        let (owned, connection) = (name.to_owned(), Arc::clone(&self.connection));
        let result = self.transfer(async move { connection.get(&owned, options, limit_bytes).await })?;
        self.unless_absent(result, "read", name)
    }

    /// Reads a range of bytes. The result has all of them.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](ErrorKind::Corrupt) if there is no such object, or if it ends before the range does: who asks for a
    /// range knows both from a manifest. Otherwise as [`get`](Self::get).
    pub fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (owned, connection) = (name.to_owned(), Arc::clone(&self.connection));
        let result = self.transfer(async move { connection.get_range(&owned, range).await })?;
        result.map_err(|failed| self.error(failed, "read", name))
    }

    /// Reads the first `length_bytes` of an object, which are usually all, and passes the pieces to `sink` as they arrive. An
    /// error of `sink` ends the request, and is returned. Otherwise as [`get_range`](Self::get_range).
    pub(crate) fn stream(
        &self,
        name: &str,
        length_bytes: u64,
        sink: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        let (owned, connection, permits) =
            (name.to_owned(), Arc::clone(&self.connection), Arc::clone(&self.permits));
        let request = |to| async move {
            let _permit = permits.acquire().await;
            connection.send(&owned, length_bytes, to).await
        };
        let result = self.threads.wait_for_pieces(self.check.as_ref(), request, sink)?;
        result.map_err(|failed| self.error(failed, "read", name))
    }

    /// Returns how many more requests could run now.
    pub(crate) fn idle_jobs(&self) -> usize {
        self.permits.available_permits()
    }

    /// Reads ranges as [`get_range`](Self::get_range) does, at the same time. The results are in the order of `parts`. If
    /// [`check`](Self::with_check) fails, its error is the result of each part.
    pub fn get_ranges(&self, parts: &[(String, Range<u64>)]) -> Vec<Result<Bytes>> {
        let (owned, connection) = (parts.to_vec(), Arc::clone(&self.connection));
        let ranges = get_ranges(connection, owned, (self.jobs, Arc::clone(&self.permits)));
        let mut results = match self.wait(ranges) {
            Ok(results) => results,
            Err(error) => return parts.iter().map(|_| Err(error.clone())).collect(),
        };
        let result = |(index, (name, _)): (usize, &(String, Range<u64>))| match results.remove(&index) {
            Some(result) => result.map_err(|failed| self.error(failed, "read", name)),
            None => Err(Error::new(ErrorKind::Io, format!("read {name}: its thread panicked"))),
        };
        parts.iter().enumerate().map(result).collect()
    }

    /// Writes an object unless there is one with this name: then nothing changes, and the result is [`Put::Exists`].
    ///
    /// # Errors
    ///
    /// [`NotAllowed`](ErrorKind::NotAllowed) for a remote that is read-only, [`NotFound`](ErrorKind::NotFound) if there is
    /// no such bucket, and [`Io`](ErrorKind::Io). After an `Io` error, the object may have been written.
    pub fn put_new(&self, name: &str, bytes: Bytes) -> Result<Put> {
        self.put_with(name, vec![bytes], PutMode::Create)
    }

    /// Replaces an object that still has this version. If it has not, or is gone, nothing changes, and the result is
    /// [`Put::Exists`].
    ///
    /// # Errors
    ///
    /// As those of [`put_new`](Self::put_new).
    pub fn put_if_match(&self, name: &str, bytes: Bytes, version: &Version) -> Result<Put> {
        self.put_with(name, vec![bytes], PutMode::Update(version.to_update()))
    }

    /// Writes an object, whether or not there is one: for a name that says what the bytes are. It is durable when this
    /// returns.
    ///
    /// # Errors
    ///
    /// As those of [`put_new`](Self::put_new).
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<Version> {
        self.put_parts(name, vec![bytes])
    }

    /// Like [`put`](Self::put), for an object of several parts, one after another.
    pub(crate) fn put_parts(&self, name: &str, parts: Vec<Bytes>) -> Result<Version> {
        match self.put_with(name, parts, PutMode::Overwrite)? {
            Put::Written(version) => Ok(version),
            Put::Exists => Err(Error::new(
                ErrorKind::Io,
                format!("write {name}: {}: the server refused to replace it", self.location),
            )),
        }
    }

    fn put_with(&self, name: &str, parts: Vec<Bytes>, mode: PutMode) -> Result<Put> {
        self.check_writable("write", name)?;
        let (owned, connection) = (name.to_owned(), Arc::clone(&self.connection));
        let result = self.transfer(async move { connection.put(&owned, &parts, mode).await })?;
        result.map_err(|failed| match failed.failure.trouble {
            // Nothing else can be absent where an object is written.
            Trouble::Absent => self.error(failed.with(Trouble::NoBucket), "write", name),
            _ => self.error(failed, "write", name),
        })
    }

    /// Returns the length and time of an object, or `None` if there is none with this name. A server does not say here
    /// whether the bucket exists.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io).
    pub fn info(&self, name: &str) -> Result<Option<ObjectInfo>> {
        let (owned, connection) = (name.to_owned(), Arc::clone(&self.connection));
        let result = self.wait(async move { connection.info(&owned).await })?;
        self.unless_absent(result, "look at", name)
    }

    /// Deletes an object. One that is not there is not an error.
    ///
    /// # Errors
    ///
    /// As those of [`put_new`](Self::put_new).
    pub fn delete(&self, name: &str) -> Result<()> {
        self.check_writable("delete", name)?;
        let (owned, connection) = (name.to_owned(), Arc::clone(&self.connection));
        let result = self.wait(async move { connection.delete(&owned).await })?;
        result.map_err(|failed| self.error(failed, "delete", name))
    }

    /// Deletes an object that was put at this time of the server, or before. Returns what was found, or `None` if there is
    /// no object with this name. Each attempt looks at the object just before it deletes it.
    ///
    /// # Errors
    ///
    /// As those of [`put_new`](Self::put_new).
    pub fn delete_if_older(&self, name: &str, than: SystemTime) -> Result<Option<ObjectInfo>> {
        self.check_writable("delete", name)?;
        let (owned, connection) = (name.to_owned(), Arc::clone(&self.connection));
        let result = self.wait(async move { connection.delete_if_older(&owned, than).await })?;
        self.unless_absent(result, "delete", name)
    }

    /// Lists the objects below a name that ends before a slash, as "objects", or all of them for "". The order is the
    /// server's. A directory that is not there has no objects.
    ///
    /// # Errors
    ///
    /// [`NotAllowed`](ErrorKind::NotAllowed) for a server of files, which has no listings. Otherwise as
    /// [`get`](Self::get).
    pub fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.check_writable("list", prefix)?;
        let (owned, connection) = (prefix.to_owned(), Arc::clone(&self.connection));
        let result = self.wait(async move { connection.list(&owned).await })?;
        result.map_err(|failed| self.error(failed, "list", prefix))
    }

    fn wait<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
        self.threads.wait(self.check.as_ref(), future)
    }

    /// Waits for a request that sends or receives the bytes of an object.
    fn transfer<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let permits = Arc::clone(&self.permits);
        let request = async move {
            // Only a closed semaphore would return an error.
            let _permit = permits.acquire().await;
            future.await
        };
        self.wait(request)
    }

    fn error(&self, failed: Failed, verb: &str, name: &str) -> Error {
        let rule = match failed.failure.trouble {
            Trouble::Absent => {
                Some((Rule::RemoteObject, "the object is missing; if the remote was pruned, open it again"))
            }
            Trouble::BeyondEnd => Some((Rule::ObjectDigest, failed.failure.text.as_str())),
            _ => None,
        };
        if let Some((rule, detail)) = rule {
            return crate::broken(&self.location, name, FormatError::new(rule, detail));
        }
        let tried = failed.tried();
        failed.failure.into_error(format!("{verb} {name}").trim(), &self.location, &tried)
    }

    fn unless_absent<T>(&self, result: Result<T, Failed>, verb: &str, name: &str) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failed) if failed.failure.trouble == Trouble::Absent => Ok(None),
            Err(failed) => Err(self.error(failed, verb, name)),
        }
    }

    fn check_writable(&self, verb: &str, name: &str) -> Result<()> {
        if !self.is_read_only {
            return Ok(());
        }
        let hint = "a remote behind http or https can only be read; use the URL of its bucket or directory";
        Err(Error::new(ErrorKind::NotAllowed, format!("{verb} {name}: {}: {hint}", self.location)))
    }
}

/// Reads ranges, each by a request that has a permit. At most `jobs` wait for one. Dropping the future ends all requests.
async fn get_ranges(
    connection: Arc<Connection>,
    parts: Vec<(String, Range<u64>)>,
    (jobs, permits): (usize, Arc<Semaphore>),
) -> BTreeMap<usize, Result<Bytes, Failed>> {
    let mut running = JoinSet::new();
    let mut results = BTreeMap::new();
    for (index, (name, range)) in parts.into_iter().enumerate() {
        if running.len() >= jobs
            && let Some(Ok((index, result))) = running.join_next().await
        {
            results.insert(index, result);
        }
        let (connection, permits) = (Arc::clone(&connection), Arc::clone(&permits));
        running.spawn(async move {
            let _permit = permits.acquire().await;
            let result = match range.is_empty() {
                true => Ok(Bytes::new()),
                false => connection.get_range(&name, range).await,
            };
            (index, result)
        });
    }
    while let Some(joined) = running.join_next().await {
        if let Ok((index, result)) = joined {
            results.insert(index, result);
        }
    }
    results
}

/// Refuses the directory of a local store: a push would put its objects among the files of that store.
fn check_directory(address: &Address) -> Result<()> {
    let Place::File { root } = &address.place else { return Ok(()) };
    let Some(store) = file_store::local_store_around(root) else { return Ok(()) };
    let (location, path) = (&address.location, store.display());
    let message = match root.canonicalize().is_ok_and(|root| root == store) {
        true => format!(
            "this is a local store, not a remote; open it by its path, {path}, or push to another URL"
        ),
        false => format!("this is inside a local store, {path}; a remote needs a directory of its own"),
    };
    Err(Error::new(ErrorKind::InvalidArgument, format!("open {location}: {message}")))
}
