//! Stores and snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stridemap::history::{At, LogEntry, Retention, TagInfo};
use stridemap::{Durability, ErrorKind, ExternalFiles, StorageKind, Store, StoreOptions};
use stridemap_remote::Remote;

use crate::error::Result;
use crate::interrupt::{self, apart, detach};
use crate::origin::{OpenMode, Origin};
use crate::remote::Progress;
use crate::snapshot::{Snapshot, find, has_prefix, names};
use crate::source::Elements;
use crate::staged_file::StagedFile;
use crate::tensor::Tensor;
use crate::transaction::TransactionHandle;

/// The maximum duration of a wait, in seconds. Longer timeouts are reduced to it.
const MAX_SECONDS: f64 = 1e9;

/// The interval at which a wait checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// An open store. All handles of a process on the same store share its mappings.
#[pyclass(frozen, subclass, weakref)]
pub(crate) struct StoreHandle {
    /// `None` once it is closed.
    store: Mutex<Option<Store>>,
    open_mode: OpenMode,
    remote: Option<OpenRemote>,
}

/// The remote of a store that is read in place.
#[derive(Clone)]
struct OpenRemote {
    remote: Remote,
    /// Whether the handle was opened at a generation, and stays on it.
    is_fixed: bool,
}

/// A generation: the name of a tag, or a number.
#[derive(Clone, FromPyObject)]
pub(crate) enum AtArgument {
    Tag(String),
    Generation(u64),
}

impl From<AtArgument> for At {
    fn from(at: AtArgument) -> At {
        match at {
            AtArgument::Tag(name) => At::Tag(name),
            AtArgument::Generation(number) => At::Generation(number),
        }
    }
}

/// Opens a store. With `mapped`, no other program may change its files; see `stridemap.open`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are those of `stridemap.open`, which gives all of them")]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    at: Option<AtArgument>,
    mapped: bool,
    writable: bool,
    durable: bool,
    timeout: f64,
    external: &str,
    verify: bool,
) -> Result<StoreHandle> {
    let open_mode = OpenMode { mapped, writable, external: external.to_owned(), remote: false, verify };
    let mut options = options(durable, timeout, external)?.verify_on_read(verify);
    if let Some(at) = at {
        options = options.at(at);
    }
    let store = detach(py, || match mapped {
        // SAFETY: `stridemap.open` states the contract: only stridemap changes the files of the store.
        true => unsafe { options.open_mapped(path) },
        false => options.open(path),
    })?;
    Ok(StoreHandle { store: Mutex::new(Some(store)), open_mode, remote: None })
}

/// Creates an empty store. In any mode but "x", the store may exist.
#[pyfunction]
pub(crate) fn create(py: Python<'_>, path: PathBuf, mode: &str, durable: bool, timeout: f64) -> Result<()> {
    let options = options(durable, timeout, "refuse")?;
    detach(py, || match mode {
        "x" => options.create(path).map(drop),
        _ => options.open_or_create(path).map(drop),
    })
}

fn options(durable: bool, timeout: f64, external: &str) -> Result<StoreOptions> {
    let timeout = Duration::try_from_secs_f64(timeout.clamp(f64::MIN, MAX_SECONDS)).map_err(|_| {
        PyValueError::new_err(format!("timeout must be a number of seconds from 0, and is {timeout}"))
    })?;
    let external = match external {
        "refuse" => ExternalFiles::Refuse,
        "beside" => ExternalFiles::Beside,
        "anywhere" => ExternalFiles::Anywhere,
        other => {
            let message = format!("external must be \"refuse\", \"beside\" or \"anywhere\", not {other:?}");
            return Err(PyValueError::new_err(message).into());
        }
    };
    let durability = if durable { Durability::Full } else { Durability::Process };
    let options = StoreOptions::new().durability(durability).lock_timeout(timeout).external(external);
    Ok(options.on_wait(SIGNAL_INTERVAL, |_| interrupt::check()))
}

/// Waits until `wait` returns true, for at most `timeout` seconds. Between its turns, handlers of signals run.
pub(crate) fn wait_in_turns(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl Fn(Duration) -> Result<bool> + Send + Sync,
) -> Result<bool> {
    let until = timeout.map(|seconds| {
        Instant::now() + Duration::try_from_secs_f64(seconds.clamp(0., MAX_SECONDS)).unwrap_or_default()
    });
    loop {
        let left = until.map_or(SIGNAL_INTERVAL, |until| {
            until.saturating_duration_since(Instant::now()).min(SIGNAL_INTERVAL)
        });
        if detach(py, || wait(left))? {
            return Ok(true);
        }
        py.check_signals()?;
        if until.is_some_and(|until| until <= Instant::now()) {
            return Ok(false);
        }
    }
}

/// Microseconds since 1970: what Python makes a time of.
pub(crate) fn microseconds(time: SystemTime) -> i128 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_micros() as i128,
        Err(before) => -(before.duration().as_micros() as i128),
    }
}

/// The name of a tag, its generation, the time and the message.
type Tag = (String, u64, i128, Option<String>);

/// A generation, the time, the message, the tags and the own bytes.
type Entry = (u64, i128, Option<String>, Vec<String>, u64);

fn tags(found: Vec<TagInfo>) -> Vec<Tag> {
    let tag = |tag: TagInfo| (tag.name, tag.generation, microseconds(tag.time), tag.message);
    found.into_iter().map(tag).collect()
}

pub(crate) fn kind_of(name: &str) -> Result<StorageKind> {
    match name {
        "sealed" => Ok(StorageKind::Sealed),
        "mutable" => Ok(StorageKind::Mutable),
        "live" => Ok(StorageKind::Live),
        other => {
            let message = format!("kind must be \"sealed\", \"mutable\" or \"live\", not {other:?}");
            Err(PyValueError::new_err(message).into())
        }
    }
}

pub(crate) fn origin(store: &Store, open_mode: &OpenMode, generation: u64, name: &str) -> Origin {
    let (path, name) = (store.path().to_owned(), name.to_owned());
    Origin { store: path, uuid: store.uuid(), open_mode: open_mode.clone(), generation, name }
}

impl StoreHandle {
    pub(crate) fn of_remote(
        store: Store,
        open_mode: OpenMode,
        remote: Remote,
        is_fixed: bool,
    ) -> StoreHandle {
        StoreHandle {
            store: Mutex::new(Some(store)),
            open_mode,
            remote: Some(OpenRemote { remote, is_fixed }),
        }
    }

    pub(crate) fn store(&self) -> Result<Store> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.clone().ok_or_else(|| PyValueError::new_err("the store is closed").into())
    }
}

#[pymethods]
impl StoreHandle {
    /// Closes the handle. Tensors and arrays stay valid. Closing it again does nothing.
    fn close(&self, py: Python<'_>) {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(store));
    }

    #[getter]
    fn closed(&self) -> bool {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The path of the store, or the URL of its remote. The class `Path` of Python would change a URL.
    #[getter]
    fn path(&self) -> Result<OsString> {
        Ok(self.store()?.path().into())
    }

    #[getter]
    fn uuid(&self) -> Result<String> {
        Ok(self.store()?.uuid())
    }

    #[getter]
    fn generation(&self) -> Result<u64> {
        Ok(self.store()?.generation())
    }

    fn refresh(&self, py: Python<'_>) -> Result<bool> {
        let store = self.store()?;
        match &self.remote {
            None => detach(py, || store.refresh()),
            Some(remote) if remote.is_fixed => Ok(false),
            Some(OpenRemote { remote, .. }) => {
                let newest = self.open_mode.detach(py, || remote.store())?;
                if newest.uuid() != store.uuid() {
                    let message = format!(
                        "{}: a different store has taken its place; open it again",
                        remote.location()
                    );
                    return Err(stridemap::Error::new(ErrorKind::Stale, message).into());
                }
                let is_newer = newest.generation() != store.generation();
                let mut open = self.store.lock().unwrap_or_else(PoisonError::into_inner);
                // Another thread may have closed it.
                if is_newer && open.is_some() {
                    *open = Some(newest);
                }
                Ok(is_newer)
            }
        }
    }

    /// Returns another handle on the same generation.
    fn duplicate(&self, is_fixed: bool) -> Result<StoreHandle> {
        let remote = self.remote.clone().map(|remote| OpenRemote { is_fixed, ..remote });
        Ok(StoreHandle { store: Mutex::new(Some(self.store()?)), open_mode: self.open_mode.clone(), remote })
    }

    /// Returns the names that begin with `prefix`.
    #[pyo3(signature = (prefix = ""))]
    fn names(&self, py: Python<'_>, prefix: &str) -> Result<Vec<String>> {
        let store = self.store()?;
        self.open_mode.detach(py, || names(&store.snapshot(), prefix))
    }

    /// Whether a name begins with `prefix`.
    fn has_prefix(&self, py: Python<'_>, prefix: &str) -> Result<bool> {
        let store = self.store()?;
        self.open_mode.detach(py, || has_prefix(&store.snapshot(), prefix))
    }

    /// Returns the number of tensors.
    fn tensor_count(&self, py: Python<'_>) -> Result<u64> {
        let store = self.store()?;
        self.open_mode.detach(py, || store.snapshot().tensor_count())
    }

    /// Loads a tensor. Returns `None` if there is none, without the time that the error of `load` takes.
    fn find(&self, py: Python<'_>, name: &str) -> Result<Option<Tensor>> {
        let store = self.store()?;
        let snapshot = store.snapshot();
        let Some(inner) = self.open_mode.detach(py, || find(&snapshot, name))? else { return Ok(None) };
        let origin = origin(&store, &self.open_mode, snapshot.generation(), name);
        Ok(Some(Tensor { inner, origin: Some(Arc::new(origin)) }))
    }

    fn contains(&self, py: Python<'_>, name: &str) -> Result<bool> {
        let store = self.store()?;
        self.open_mode.detach(py, || store.contains(name))
    }

    fn append(&self, py: Python<'_>, name: &str, elements: Elements<'_>) -> Result<(usize, usize)> {
        let (store, source) = (self.store()?, elements.source()?);
        let rows = detach(py, || store.append(name, &source))?;
        Ok((rows.start, rows.end))
    }

    fn load(&self, py: Python<'_>, name: &str) -> Result<Tensor> {
        let store = self.store()?;
        let inner = self.open_mode.detach(py, || store.load(name))?;
        let origin = origin(&store, &self.open_mode, store.generation(), name);
        Ok(Tensor { inner, origin: Some(Arc::new(origin)) })
    }

    /// Waits for a commit by another handle, and moves to it. Returns whether there was one.
    fn wait_for_change(&self, py: Python<'_>, timeout: Option<f64>) -> Result<bool> {
        let store = self.store()?;
        wait_in_turns(py, timeout, |left| Ok(store.wait_for_change(left)?))
    }

    /// Returns a snapshot of the generation of the handle.
    fn snapshot(&self) -> Result<Snapshot> {
        let store = self.store()?;
        Ok(Snapshot { snapshot: store.snapshot(), store, open_mode: self.open_mode.clone() })
    }

    /// Returns a snapshot of an earlier generation.
    fn at(&self, py: Python<'_>, at: AtArgument) -> Result<Snapshot> {
        let store = self.store()?;
        let at = At::from(at);
        let snapshot = self.open_mode.detach(py, || match (store.at(at.clone()), &self.remote) {
            // The remote may still have it, until it is pruned.
            (Err(e), Some(OpenRemote { remote, .. })) if e.kind() == ErrorKind::Conflict => remote.at(at),
            (found, _) => found,
        })?;
        Ok(Snapshot { snapshot, store, open_mode: self.open_mode.clone() })
    }

    fn tags(&self, py: Python<'_>) -> Result<Vec<Tag>> {
        let store = self.store()?;
        Ok(tags(self.open_mode.detach(py, || store.tags())?))
    }

    /// Returns the generations that are kept, the newest first.
    fn log(&self, py: Python<'_>) -> Result<Vec<Entry>> {
        let store = self.store()?;
        let entries = self.open_mode.detach(py, || store.log())?.into_iter();
        let entry = |entry: LogEntry| {
            (entry.generation, microseconds(entry.time), entry.message, entry.tags, entry.own_bytes)
        };
        Ok(entries.map(entry).collect())
    }

    /// Removes those of the tags in `candidates` that no rule keeps. Returns the removed tags.
    fn prune(
        &self,
        py: Python<'_>,
        candidates: BTreeSet<String>,
        keep_last: Option<usize>,
        keep_within: Option<f64>,
        keep_every: Option<u64>,
    ) -> Result<Vec<Tag>> {
        let store = self.store()?;
        let keep_within = keep_within.map(|seconds| Duration::from_secs_f64(seconds.clamp(0., MAX_SECONDS)));
        let policy = Retention { keep_last, keep_within, keep_every };
        Ok(tags(detach(py, || store.retain(&policy, |name| candidates.contains(name)))?))
    }

    fn begin(&self, py: Python<'_>, exclusive: bool) -> Result<TransactionHandle> {
        let store = self.store()?;
        let origin = origin(&store, &self.open_mode, store.generation(), "");
        detach(py, || TransactionHandle::begin(store, origin, exclusive))
    }

    /// Creates a file for a storage that several processes fill.
    fn stage_file(&self, py: Python<'_>, length_bytes: u64) -> Result<StagedFile> {
        let store = self.store()?;
        StagedFile::new(detach(py, || store.stage_file(length_bytes))?)
    }

    /// Checks all metadata and every sealed byte. Returns a line for each finding and each interrupted change.
    fn verify(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> Result<Vec<String>> {
        let store = self.store()?;
        let progress = Progress::new(progress.as_ref());
        let found = apart(
            py,
            |py| progress.tick(py),
            |_| {
                // What cannot be read is reported.
                let sealed = store.snapshot();
                let sealed =
                    sealed.storages().flatten().filter(|storage| storage.kind == StorageKind::Sealed);
                let total_bytes = sealed.fold(0u64, |sum, storage| sum.saturating_add(storage.size_bytes));
                store.verify(progress.advance(total_bytes))
            },
        )?;
        let interrupted = found.interrupted.iter().map(|name| {
            format!(
                "{name:?}: a change of the elements was interrupted; allow_interrupted() reads and locks them"
            )
        });
        Ok(found.findings.iter().map(ToString::to_string).chain(interrupted).collect())
    }

    /// Rewrites sealed storages to free bytes that no tensor reaches, and deletes files that no generation needs.
    fn compact(&self, py: Python<'_>) -> Result<()> {
        let store = self.store()?;
        detach(py, || store.compact(false, |_| interrupt::check()).map(drop))
    }

    /// Returns the scope and the key of every attribute.
    fn attribute_keys(&self) -> Result<Vec<(String, String)>> {
        Ok(self.store()?.snapshot().all_attributes().keys().cloned().collect())
    }

    fn attributes(&self, scope: &str) -> Result<BTreeMap<String, String>> {
        Ok(self.store()?.attributes(scope))
    }
}
