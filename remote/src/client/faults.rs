//! A remote in memory whose requests fail as told, so that tests can simulate a bad network and killed processes.
//!
//! With the feature `simulation`. Not covered by semver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::Client;
use super::attempts::Pace;
use super::redact::Secrets;
use super::stores::Opened;

/// What happens to a request.
#[derive(Clone)]
pub enum Fault {
    /// The connection is lost before the server does anything.
    Lost,
    /// The server does what was asked, and the connection is lost before its answer arrives.
    AnswerLost,
    /// The server does nothing and never answers.
    Hangs,
    /// The server does what was asked and never answers.
    AnswerHangs,
    /// The request arrives this much later.
    Slow(Duration),
    /// The server does nothing and answers with this status: 403, 429, 500, 503.
    Status(u16),
    /// Half of the bytes arrive, and then the answer ends. As [`AnswerLost`](Self::AnswerLost) for other requests than
    /// gets.
    Truncated,
    /// All bytes arrive, and the middle one is wrong. Nothing happens to other requests than gets.
    Wrong,
    /// This is called before the request is sent.
    Before(Arc<dyn Fn() + Send + Sync>),
    /// This is called after the server has done what was asked, before the client gets the answer.
    After(Arc<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Lost => f.write_str("Lost"),
            Fault::AnswerLost => f.write_str("AnswerLost"),
            Fault::Hangs => f.write_str("Hangs"),
            Fault::AnswerHangs => f.write_str("AnswerHangs"),
            Fault::Slow(time) => write!(f, "Slow({time:?})"),
            Fault::Status(status) => write!(f, "Status({status})"),
            Fault::Truncated => f.write_str("Truncated"),
            Fault::Wrong => f.write_str("Wrong"),
            Fault::Before(_) => f.write_str("Before"),
            Fault::After(_) => f.write_str("After"),
        }
    }
}

/// A remote in memory with faults. Clones share it.
///
/// ```
/// use std::time::Duration;
/// use stridemap_remote::faults::{Fault, Faults};
///
/// let remote = Faults::new();
/// let client = remote.client(Duration::from_secs(1));
/// remote.inject(0, Fault::Status(503));
/// client.put("HEAD", "bytes".into())?; // the second attempt succeeds
/// assert_eq!(remote.log(), ["put HEAD", "put HEAD"]);
/// # Ok::<(), stridemap::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    objects: InMemory,
    plan: Mutex<Plan>,
    /// How much older objects are than they would be.
    ages: Mutex<BTreeMap<Path, Duration>>,
    /// How many slow requests run now, and how many ran at a time at most.
    slow: Mutex<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Plan {
    /// By the number of the request.
    once: BTreeMap<u64, Fault>,
    /// For each request from this number on that has no fault of its own.
    from: Option<(u64, Fault)>,
    log: Vec<String>,
}

impl Faults {
    /// Creates an empty remote without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a connection. A single attempt takes a fifth of the timeout at most, and pauses are a few milliseconds.
    ///
    /// # Panics
    ///
    /// If threads cannot be started.
    #[must_use]
    #[expect(clippy::expect_used, reason = "only tests call it")]
    pub fn client(&self, timeout: Duration) -> Client {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let pace = Pace {
            timeout,
            attempt: timeout / 5,
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(8),
        };
        let location = format!("memory://simulated/{}", OPENED.fetch_add(1, Ordering::Relaxed));
        Client::connect(&location, Opened::of(self.clone()), Secrets::default(), pace)
            .expect("threads are started")
    }

    /// Lets the request with this number fail. The next one after [`reset`](Self::reset) has number 0, and each attempt
    /// counts.
    pub fn inject(&self, request: u64, fault: Fault) {
        self.plan().once.insert(request, fault);
    }

    /// Lets all requests from this number on fail.
    pub fn inject_from(&self, request: u64, fault: Fault) {
        self.plan().from = Some((request, fault));
    }

    /// Forgets all faults, and counts from 0 again. The objects stay.
    pub fn reset(&self) {
        *self.plan() = Plan::default();
        *self.slow() = (0, 0);
    }

    /// Makes all objects that are there now older. An object that is put again is as old as it is.
    pub fn age(&self, by: Duration) {
        let found = futures_util::future::FutureExt::now_or_never(
            self.shared.objects.list(None).try_collect::<Vec<ObjectMeta>>(),
        );
        let mut ages = self.ages();
        for meta in found.into_iter().flatten().flatten() {
            *ages.entry(meta.location).or_default() += by;
        }
    }

    fn ages(&self) -> MutexGuard<'_, BTreeMap<Path, Duration>> {
        self.shared.ages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_age(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if let Some(age) = self.ages().get(&meta.location) {
            meta.last_modified -= *age;
        }
        meta
    }

    /// Returns the requests so far: "put HEAD", "get objects/...".
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.plan().log.clone()
    }

    /// Returns how many requests with [`Slow`](Fault::Slow) there were at a time at most.
    #[must_use]
    pub fn most_slow_at_once(&self) -> u64 {
        self.slow().1
    }

    fn slow(&self) -> MutexGuard<'_, (u64, u64)> {
        self.shared.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request: what happens before the server does what was asked. Returns what happens after that.
    async fn begin(&self, request: String) -> Result<Option<Fault>> {
        let fault = {
            let mut plan = self.plan();
            let number = plan.log.len() as u64;
            plan.log.push(request);
            let from =
                plan.from.as_ref().filter(|(first, _)| number >= *first).map(|(_, fault)| fault.clone());
            plan.once.remove(&number).or(from)
        };
        match fault {
            Some(Fault::Lost) => Err(connection_lost()),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Status(status)) => {
                Err(Error::Generic { store: "simulated", source: Box::new(Answered(status)) })
            }
            Some(Fault::Slow(time)) => {
                {
                    let (now, most) = &mut *self.slow();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                tokio::time::sleep(time).await;
                self.slow().0 -= 1;
                Ok(None)
            }
            Some(Fault::Before(hook)) => {
                call(hook).await;
                Ok(None)
            }
            after => Ok(after),
        }
    }
}

/// Ends a request whose answer has no bytes.
async fn end(fault: Option<Fault>) -> Result<()> {
    match fault {
        Some(Fault::AnswerLost | Fault::Truncated) => Err(connection_lost()),
        Some(Fault::AnswerHangs) => std::future::pending().await,
        Some(Fault::After(hook)) => {
            call(hook).await;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Calls a hook on a thread that requests do not need: hooks send requests themselves, and wait for them.
async fn call(hook: Arc<dyn Fn() + Send + Sync>) {
    if let Err(error) = tokio::task::spawn_blocking(move || hook()).await {
        std::panic::resume_unwind(error.into_panic());
    }
}

fn connection_lost() -> Error {
    let source =
        HttpError::new(HttpErrorKind::Interrupted, std::io::Error::other("connection reset by peer"));
    Error::Generic { store: "simulated", source: Box::new(source) }
}

/// Displayed as object_store displays an answer with an error.
#[derive(Debug)]
struct Answered(u16);

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server returned non-2xx status code: {} Simulated: simulated fault", self.0)
    }
}

impl std::error::Error for Answered {}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

#[async_trait]
impl ObjectStore for Faults {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let fault = self.begin(format!("put {location}")).await?;
        let result = self.shared.objects.put_opts(location, payload, opts).await;
        if result.is_ok() {
            self.ages().remove(location);
        }
        end(fault).await?;
        result
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let verb = if options.head { "head" } else { "get" };
        let is_head = options.head;
        let fault = self.begin(format!("{verb} {location}")).await?;
        let mut result = self.shared.objects.get_opts(location, options).await?;
        result.meta = self.with_age(result.meta);
        if is_head || !matches!(fault, Some(Fault::Truncated | Fault::Wrong)) {
            end(fault).await?;
            return Ok(result);
        }
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let mut bytes = Vec::from(result.bytes().await?);
        let middle = bytes.len() / 2;
        if matches!(fault, Some(Fault::Truncated)) {
            bytes.truncate(middle);
        } else if let Some(byte) = bytes.get_mut(middle) {
            *byte ^= 1;
        }
        let payload = GetResultPayload::Stream(stream::iter([Ok(Bytes::from(bytes))]).boxed());
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .and_then(move |location| {
                let this = this.clone();
                async move {
                    let fault = this.begin(format!("delete {location}")).await?;
                    let one = stream::iter([Ok(location.clone())]).boxed();
                    this.shared.objects.delete_stream(one).try_collect::<Vec<_>>().await?;
                    end(fault).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let shown = prefix.as_ref().map(Path::to_string).unwrap_or_default();
            let fault = this.begin(format!("list {shown}").trim().to_owned()).await?;
            let mut found: Vec<Result<ObjectMeta>> =
                this.shared.objects.list(prefix.as_ref()).map_ok(|meta| this.with_age(meta)).collect().await;
            if matches!(fault, Some(Fault::Truncated)) {
                found.truncate(found.len() / 2);
                found.push(Err(connection_lost()));
            } else {
                end(fault).await?;
            }
            Ok::<_, Error>(stream::iter(found))
        };
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.objects.list_with_delimiter(prefix).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.shared.objects.put_multipart_opts(location, opts).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.objects.copy_opts(from, to, options).await
    }
}
