//! Stores in object storage: what is pushed and pulled, and reading in place.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stridemap::{Durability, ErrorKind, StoreOptions};
use stridemap_remote::{Done, Followed, PruneOptions, Pulled, Remote, RemoteOptions};

use crate::error::{Error, Result};
use crate::interrupt::{self, Call, apart};
use crate::origin::OpenMode;
use crate::store::{AtArgument, StoreHandle};

/// The maximum duration of a wait, in seconds. Longer ones are reduced to it.
const MAX_SECONDS: f64 = 1e9;

/// The generation of the local store, the one before, the received bytes, and the number of storages that changed.
type PulledParts = (u64, Option<u64>, u64, u64);

/// How a remote is used: the number of requests at a time, and how long a request that fails is repeated, in seconds.
#[derive(FromPyObject)]
pub(crate) struct Requests(usize, f64);

impl Requests {
    fn options(&self) -> Result<RemoteOptions> {
        if self.0 == 0 {
            return Err(PyValueError::new_err("jobs must be at least 1, and is 0").into());
        }
        Ok(RemoteOptions::new().jobs(self.0).timeout(seconds("timeout", self.1)?))
    }
}

/// Returns a number of seconds as a duration.
fn seconds(name: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value.min(MAX_SECONDS)).map_err(|_| {
        PyValueError::new_err(format!("{name} must be a number of seconds from 0, and is {value}")).into()
    })
}

/// Opens a remote for one call.
fn open_for(options: RemoteOptions, url: &str, call: &Call) -> stridemap::Result<Remote> {
    let call = call.clone();
    options.check(move || call.check()).open(url)
}

/// Calls a function of Python with the bytes that are done and those of the whole operation, when they have changed.
pub(crate) struct Progress<'a> {
    function: Option<&'a Py<PyAny>>,
    done: Mutex<Option<(u64, u64)>>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(function: Option<&'a Py<PyAny>>) -> Self {
        Progress { function, done: Mutex::default() }
    }

    /// Returns what the operation calls, from any thread.
    fn report(&self, call: &Call) -> impl Fn(Done) -> stridemap::Result<()> + Sync {
        move |done| {
            *self.done.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((done.done_bytes, done.total_bytes));
            call.check()
        }
    }

    /// Returns what an operation calls with more bytes that are done, of a total that may turn out to be larger. Runs the
    /// handlers of signals.
    pub(crate) fn advance(&self, total_bytes: u64) -> impl FnMut(u64) {
        let mut done_bytes = 0u64;
        move |bytes| {
            done_bytes = done_bytes.saturating_add(bytes);
            let done = Some((done_bytes, total_bytes.max(done_bytes)));
            *self.done.lock().unwrap_or_else(PoisonError::into_inner) = done;
            interrupt::check();
        }
    }

    /// Calls the function, on the thread of the caller.
    pub(crate) fn tick(&self, py: Python<'_>) -> PyResult<()> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (self.function, done) {
            (Some(function), Some(done)) => function.call1(py, done).map(drop),
            _ => Ok(()),
        }
    }
}

/// Opens a remote as a store that is read in place.
#[pyfunction]
pub(crate) fn open_remote(
    py: Python<'_>,
    url: &str,
    at: Option<AtArgument>,
    timeout: f64,
    external: &str,
) -> Result<StoreHandle> {
    let options = RemoteOptions::new().timeout(seconds("timeout", timeout)?).check(interrupt::check_requests);
    let is_fixed = at.is_some();
    let (remote, store) = apart(
        py,
        |_| Ok(()),
        |_| -> stridemap::Result<_> {
            let remote = options.open(url)?;
            let store = match at {
                Some(at) => remote.store_at(at)?,
                None => remote.store()?,
            };
            Ok((remote, store))
        },
    )?;
    let external = external.to_owned();
    let open_mode = OpenMode { mapped: false, writable: false, external, remote: true, verify: false };
    Ok(StoreHandle::of_remote(store, open_mode, remote, is_fixed))
}

fn parts(pulled: &Pulled) -> PulledParts {
    (pulled.generation, pulled.previous, pulled.received_bytes, pulled.storage_count)
}

fn store_options(durable: bool) -> StoreOptions {
    let durability = if durable { Durability::Full } else { Durability::Process };
    StoreOptions::new().durability(durability).on_wait(Duration::from_millis(100), |_| interrupt::check())
}

/// Makes the store at a path the same as a remote.
#[pyfunction]
pub(crate) fn pull(
    py: Python<'_>,
    url: &str,
    path: PathBuf,
    requests: Requests,
    progress: Option<Py<PyAny>>,
    durable: bool,
    is_plan: bool,
) -> Result<PulledParts> {
    let options = requests.options()?;
    let progress = Progress::new(progress.as_ref());
    let pulled = apart(
        py,
        |py| progress.tick(py),
        |call| {
            let remote = open_for(options, url, call)?;
            match is_plan {
                true => remote.plan_pull(&path),
                false => remote.pull_with(&path, store_options(durable), &progress.report(call)),
            }
        },
    )?;
    Ok(parts(&pulled))
}

/// Copies tensors of a remote to a new store, which is a different one.
#[pyfunction]
pub(crate) fn pull_names(
    py: Python<'_>,
    url: &str,
    path: PathBuf,
    names: Vec<String>,
    requests: Requests,
    progress: Option<Py<PyAny>>,
) -> Result<PulledParts> {
    let options = requests.options()?;
    let progress = Progress::new(progress.as_ref());
    apart(
        py,
        |py| progress.tick(py),
        |call| -> stridemap::Result<_> {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let snapshot = open_for(options, url, call)?.store()?.snapshot();
            let mut total_bytes = 0u64;
            for name in &names {
                total_bytes = total_bytes.saturating_add(snapshot.load(name)?.nbytes() as u64);
            }
            let copied = snapshot.copy_to(&path, Some(&names), progress.advance(total_bytes))?;
            let copy = StoreOptions::new().open(&path)?.snapshot();
            let mut storage_count = 0;
            for storage in copy.storages() {
                storage?;
                storage_count += 1;
            }
            Ok((copy.generation(), None, copied.copied_bytes, storage_count))
        },
    )
}

/// Waits for a generation of a remote that the store at a path does not have, and pulls it. Errors that may pass are
/// passed to `on_error`, with the seconds until the next try.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "they are those of `stridemap.follow`, which gives all of them"
)]
pub(crate) fn follow(
    py: Python<'_>,
    url: &str,
    path: PathBuf,
    interval: f64,
    requests: Requests,
    progress: Option<Py<PyAny>>,
    on_error: Py<PyAny>,
    durable: bool,
) -> Result<PulledParts> {
    let (options, interval) = (requests.options()?, seconds("interval", interval)?);
    let progress = Progress::new(progress.as_ref());
    let failures: Mutex<VecDeque<(stridemap::Error, Duration)>> = Mutex::default();
    let tick = |py: Python<'_>| {
        progress.tick(py)?;
        while let Some((error, pause)) = failures.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
            let error = PyErr::from(Error::from(error)).into_value(py);
            on_error.call1(py, (error, pause.as_secs_f64()))?;
        }
        Ok(())
    };
    let pulled = apart(py, tick, |call| {
        let remote = open_for(options, url, call)?;
        let mut found = None;
        remote.follow(&path, &store_options(durable), interval, &progress.report(call), &mut |followed| {
            call.check()?;
            match followed {
                Followed::Pulled(pulled) => found = Some(pulled),
                Followed::Failed(error, pause) => {
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push_back((error, pause));
                }
                _ => {}
            }
            Ok(found.is_none())
        })?;
        let ended =
            || stridemap::Error::new(ErrorKind::Conflict, format!("follow {}: it ended", remote.location()));
        found.ok_or_else(ended)
    })?;
    Ok(parts(&pulled))
}

/// Deletes objects that a remote does not need. Returns the number and the bytes of those deleted, of those that wait for
/// the end of the grace period, and the number of generations that stay.
#[pyfunction]
pub(crate) fn prune(
    py: Python<'_>,
    url: &str,
    keep_last: usize,
    grace: f64,
    orphans: bool,
    is_plan: bool,
    requests: Requests,
) -> Result<(u64, u64, u64, u64, u64)> {
    let options = requests.options()?;
    let rules = PruneOptions::new()
        .keep_last(keep_last)
        .grace(seconds("grace", grace)?)
        .orphans(orphans)
        .plan(is_plan);
    let pruned = apart(py, |_| Ok(()), |call| open_for(options, url, call)?.prune(&rules))?;
    let waiting = (pruned.waiting_count, pruned.waiting_bytes);
    Ok((pruned.object_count, pruned.freed_bytes, waiting.0, waiting.1, pruned.generation_count))
}

#[pymethods]
impl StoreHandle {
    /// Makes the newest generation that of a remote. Returns that generation, the one that the remote had, the bytes that
    /// it lacked and those that were sent, and the number of objects that were sent.
    fn push(
        &self,
        py: Python<'_>,
        url: &str,
        requests: Requests,
        progress: Option<Py<PyAny>>,
        is_plan: bool,
    ) -> Result<(u64, Option<u64>, u64, u64, u64)> {
        let (store, options) = (self.store()?, requests.options()?);
        let progress = Progress::new(progress.as_ref());
        let pushed = apart(
            py,
            |py| progress.tick(py),
            |call| {
                let remote = open_for(options, url, call)?;
                match is_plan {
                    true => remote.plan_push(&store),
                    false => remote.push(&store, &progress.report(call)),
                }
            },
        )?;
        Ok((pushed.generation, pushed.previous, pushed.changed_bytes, pushed.sent_bytes, pushed.object_count))
    }
}
