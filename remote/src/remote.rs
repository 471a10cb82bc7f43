//! A handle to a remote, and reading it in place.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stridemap::{Error, ErrorKind, Result, Store, StoreOptions};
use stridemap_format::limits::MAX_REMOTE_MANIFEST_BYTES;
use stridemap_format::remote::{Head, ObjectName, RemoteManifest, Segment, manifest_path};
use stridemap_format::{Error as FormatError, Marker, Rule, Uuid};

use crate::client::{Client, DEFAULT_JOBS, Object, Requests};
use crate::files::RemoteFiles;
use crate::{broken, fetch, wrong_bytes};

/// How long an operation on one object is repeated, if no time is set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of HEAD is read at most. More than its length, so that a longer one is damage and not an error of reading.
pub(crate) const MAX_HEAD_BYTES: u64 = 1024 * 1024;

/// Settings of a [`Remote`].
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use stridemap_remote::RemoteOptions;
///
/// let remote = RemoteOptions::new().jobs(16).timeout(Duration::from_secs(10)).open("memory://options/x.smap")?;
/// assert_eq!(remote.location(), "memory://options/x.smap");
/// # Ok::<(), stridemap::Error>(())
/// ```
#[must_use = "options change nothing until a remote is opened with them"]
#[derive(Clone)]
pub struct RemoteOptions {
    jobs: usize,
    timeout: Duration,
    check: Option<Check>,
}

type Check = Arc<dyn Fn() -> Result<()> + Send + Sync>;

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteOptions {{ jobs: {}, timeout: {:?} }}", self.jobs, self.timeout)
    }
}

impl Default for RemoteOptions {
    fn default() -> Self {
        RemoteOptions { jobs: DEFAULT_JOBS, timeout: DEFAULT_TIMEOUT, check: None }
    }
}

impl RemoteOptions {
    /// Returns the defaults: 8 requests at a time, and 60 seconds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many requests run at a time, at least 1. A push or a pull needs up to 64 MiB of memory for each, and up to 128
    /// MiB more.
    pub fn jobs(self, jobs: usize) -> Self {
        RemoteOptions { jobs: jobs.max(1), ..self }
    }

    /// Sets how long a request that fails is repeated before the operation ends with an error.
    pub fn timeout(self, timeout: Duration) -> Self {
        RemoteOptions { timeout, ..self }
    }

    /// Sets a function that is called at least every 100 ms while a request runs. If it returns an error, the operation
    /// ends with that error.
    pub fn check(self, check: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        RemoteOptions { check: Some(Arc::new(check)), ..self }
    }

    /// Opens a remote. This sends no request.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that is not valid, or is the directory of a local store, and for settings in the
    /// environment that are not valid; `Io`.
    pub fn open(self, url: &str) -> Result<Remote> {
        let mut client = Client::open(url, self.timeout)?.with_jobs(self.jobs);
        if let Some(check) = self.check {
            client = client.with_check(check);
        }
        Ok(Remote { client })
    }
}

/// A store in object storage.
///
/// Credentials come from the environment, as the crate `object_store` reads it: `AWS_ACCESS_KEY_ID` and others.
///
/// ```
/// use stridemap::Store;
/// use stridemap_remote::Remote;
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let store = Store::create(dir.join("model.smap"))?;
/// store.save("weight", &[[1f32, 2.], [3., 4.]])?;
/// store.tag("v1")?;
///
/// let remote = Remote::open("memory://bucket/model.smap")?; // or s3://bucket/model.smap
/// remote.push(&store, &|_| Ok(()))?;
///
/// // Read in place.
/// let weight = remote.at("v1")?.load("weight")?;
/// assert_eq!(weight.select(0, 1)?.read::<f32>()?, [3., 4.]);
///
/// // A local store that is the same.
/// remote.pull(&dir.join("replica.smap"), &|_| Ok(()))?;
/// assert_eq!(Store::open(dir.join("replica.smap"))?.names()?, ["weight"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Remote {
    pub(crate) client: Client,
}

/// The HEAD of a remote, and what it names.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) head: Object,
    pub(crate) head_record: Head,
    pub(crate) manifest: RemoteManifest,
}

impl Remote {
    /// Opens a remote with the default [options](RemoteOptions). This sends no request.
    ///
    /// # Errors
    /// Those of [`RemoteOptions::open`].
    pub fn open(url: &str) -> Result<Remote> {
        RemoteOptions::new().open(url)
    }

    /// Makes a remote of a client whose requests fail as told.
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_client(client: Client, jobs: usize) -> Remote {
        Remote { client: client.with_jobs(jobs) }
    }

    /// Returns the URL, without anything secret.
    #[must_use]
    pub fn location(&self) -> &str {
        self.client.location()
    }

    /// Returns the number of requests, and of bytes sent and received, since the remote was opened.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.client.requests()
    }

    /// Opens the newest generation for reading in place. The handle stays on it.
    ///
    /// Elements are read by ranges when they are needed, in whole blocks of 64 KiB, which are compared with their digests.
    /// Nothing is kept on disk.
    ///
    /// # Errors
    /// `NotFound` if there is no store at the URL; `Corrupt` for an object that is damaged or missing; `Io`.
    pub fn store(&self) -> Result<Store> {
        self.store_with(StoreOptions::new())
    }

    /// Like [`store`](Self::store), with options. Only [`at`](StoreOptions::at) has an effect.
    ///
    /// # Errors
    /// Those of [`store`](Self::store), and of the options.
    pub fn store_with(&self, options: StoreOptions) -> Result<Store> {
        let published = self.published()?.ok_or_else(|| self.not_found())?;
        options.open_files(self.files(&published.manifest), self.location())
    }

    pub(crate) fn files(&self, manifest: &RemoteManifest) -> Arc<RemoteFiles> {
        Arc::new(RemoteFiles::new(self.client.clone(), manifest))
    }

    pub(crate) fn not_found(&self) -> Error {
        let hint = "check the URL, or push a store to it first";
        let message = format!("open {}: there is no store; {hint}", self.location());
        Error::new(ErrorKind::NotFound, message)
    }

    /// Reads HEAD and the remote manifest that it names. `None` if there is no HEAD.
    pub(crate) fn published(&self) -> Result<Option<Published>> {
        // A prune may delete what an old HEAD named.
        let first = self.published_once();
        match first {
            Err(e) if e.kind() == ErrorKind::Corrupt => self.published_once(),
            found => found,
        }
    }

    fn published_once(&self) -> Result<Option<Published>> {
        let Some(head) = self.object("HEAD", MAX_HEAD_BYTES, Rule::HeadDigest)? else { return Ok(None) };
        self.published_by(head).map(Some)
    }

    /// Reads the remote manifest that a HEAD names.
    pub(crate) fn published_by(&self, head: Object) -> Result<Published> {
        let head_record = self.decode_head(&head.bytes)?;
        let manifest = self.manifest(head_record.uuid, head_record.generation, &head_record.manifest)?;
        let (manifest, _) = manifest.ok_or_else(|| {
            let detail = "HEAD names this object, and it does not exist";
            let missing = FormatError::new(Rule::RemoteObject, detail);
            broken(self.location(), &head_record.manifest_path(), missing)
        })?;
        if manifest.generation != head_record.generation {
            let what = "HEAD and the remote manifest that it names are of different generations";
            return Err(broken(self.location(), "HEAD", FormatError::new(Rule::RemoteGeneration, what)));
        }
        Ok(Published { head, head_record, manifest })
    }

    pub(crate) fn decode_head(&self, bytes: &[u8]) -> Result<Head> {
        Head::decode(bytes, None).map_err(|e| broken(self.location(), "HEAD", e))
    }

    /// Reads a remote manifest of a store and the time when it was put, and compares its bytes with its name. `None` if
    /// there is no such object.
    pub(crate) fn manifest(
        &self,
        uuid: Uuid,
        generation: u64,
        digest: &ObjectName,
    ) -> Result<Option<(RemoteManifest, SystemTime)>> {
        let name = manifest_path(generation, digest);
        let Some(object) = self.object(&name, MAX_REMOTE_MANIFEST_BYTES, Rule::RemoteFrame)? else {
            return Ok(None);
        };
        if blake3::hash(&object.bytes).as_bytes() != digest {
            return Err(wrong_bytes(self.location(), &name));
        }
        let decoded = RemoteManifest::decode(&object.bytes, uuid);
        let manifest = decoded.map_err(|e| broken(self.location(), &name, e))?;
        Ok(Some((manifest, object.modified)))
    }

    /// Reads an object as a whole. `None` if it does not exist. One that is longer breaks the rule.
    fn object(&self, name: &str, limit_bytes: u64, rule: Rule) -> Result<Option<Object>> {
        self.client.get(name, limit_bytes).map_err(|e| match e.kind() {
            ErrorKind::LimitExceeded => {
                let detail = format!("it has more than {limit_bytes} bytes");
                broken(self.location(), name, FormatError::new(rule, detail))
            }
            _ => e,
        })
    }

    /// Reads the remote manifest that an earlier HEAD named. `None` if it was pruned.
    pub(crate) fn manifest_of(&self, head: Head) -> Result<Option<RemoteManifest>> {
        let manifest = self.manifest(head.uuid, head.generation, &head.manifest)?;
        Ok(manifest.map(|(manifest, _)| manifest))
    }

    /// Reads pages of an index.
    pub(crate) fn fetch_pages(&self, segments: &[Segment]) -> Result<Vec<Bytes>> {
        fetch::segments(&self.client, segments)
    }

    /// Refuses a URL in a place where a store on this machine is needed.
    pub(crate) fn check_local(&self, path: &Path) -> Result<()> {
        match path.to_str() {
            Some(text) if text.contains("://") => {
                let message = format!("{text}: this must be the path of a store on this machine, not a URL");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes of the FORMAT of a store.
    pub(crate) fn marker(manifest: &RemoteManifest) -> Vec<u8> {
        Marker { uuid: manifest.uuid }.encode()
    }
}
