//! The building blocks of scenarios: processes on one disk, and checks.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::simulated::SimulatedDisk;
use stridemap::disk::{Access, Disk, OmittedStep, RealDisk, omit_step};
use stridemap::{ErrorKind, ExternalFiles, Store, StoreOptions, Tensor};

use super::seat::Seat;
use crate::temporary;

/// Success, or the failure that a scenario found.
pub(crate) type Fate = Result<(), String>;

/// A disk on which every process omits the same step, or none. The processes run on one thread.
pub(crate) struct Play {
    pub(crate) disk: Arc<dyn Disk>,
    /// The simulated disk, unless the play is on a real one.
    pub(crate) simulated: SimulatedDisk,
    pub(crate) omitted: Option<&'static str>,
    _omitted_here: OmittedStep,
    pub(crate) dir: tempfile::TempDir,
    seats: AtomicU64,
}

impl Play {
    pub(crate) fn new(omitted: Option<&'static str>) -> Self {
        let simulated = SimulatedDisk::new();
        let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
        let (dir, seats) = (temporary(), AtomicU64::new(1));
        Play { disk, simulated, omitted, _omitted_here: omit_step(omitted), dir, seats }
    }

    /// Switches to the operating system's disk, for features that the simulated one lacks.
    pub(crate) fn real(mut self) -> Self {
        self.disk = Arc::new(RealDisk::default());
        self
    }

    /// Adds a process.
    pub(crate) fn seat(&self) -> Seat {
        Seat::new(&self.disk, self.seats.fetch_add(1, Ordering::Relaxed))
    }
}

pub(crate) const STORE: &str = "x.smap";

/// Returns options that refuse to wait for a lock: the processes share a thread, so a wait would never end.
pub(crate) fn options(seat: &Seat) -> StoreOptions {
    StoreOptions::new().lock_timeout(Duration::ZERO).external(ExternalFiles::Anywhere).disk(seat.disk())
}

pub(crate) fn create(seat: &Seat) -> Result<Store, String> {
    expect_ok("create", options(seat).create(STORE))
}

pub(crate) fn open(seat: &Seat) -> Result<Store, String> {
    expect_ok("open", options(seat).open(STORE))
}

pub(crate) fn vector(value: i64) -> Tensor {
    Tensor::from_vec(vec![value; 5], &[5]).unwrap()
}

pub(crate) fn bytes(count: usize, value: u8) -> Tensor {
    Tensor::from_vec(vec![value; count], &[count]).unwrap()
}

/// Returns the value of an operation that must succeed.
pub(crate) fn expect_ok<T>(what: &str, done: stridemap::Result<T>) -> Result<T, String> {
    done.map_err(|e| format!("{what} ended in {e:?}"))
}

/// Checks that an operation is refused with this kind of error.
pub(crate) fn refused<T>(what: &str, done: stridemap::Result<T>, kind: ErrorKind) -> Fate {
    match done {
        Err(e) if e.kind() == kind => Ok(()),
        Err(e) => Err(format!("{what} ended in {e:?}, and not in {kind:?}")),
        Ok(_) => Err(format!("{what} was done, and not refused as {kind:?}")),
    }
}

pub(crate) fn holds(what: impl Into<String>, is_so: bool) -> Fate {
    if is_so { Ok(()) } else { Err(what.into()) }
}

/// Checks that all elements of a tensor have this value.
pub(crate) fn has(store: &Store, name: &str, value: i64) -> Fate {
    let found: Vec<i64> = expect_ok("load", store.load(name).and_then(|tensor| tensor.read()))?;
    holds(format!("{name} is {found:?}, and not {value}"), found.iter().all(|&found| found == value))
}

/// Checks that a new process finds these names and no damage.
pub(crate) fn check_intact(play: &Play, names: &[&str]) -> Fate {
    let store = open(&play.seat())?;
    let found = expect_ok("names", store.names())?;
    holds(format!("the names are {found:?}, and not {names:?}"), found == names)?;
    match expect_ok("verify", store.verify(|_| ()))?.findings.first() {
        None => Ok(()),
        Some(finding) => Err(format!("verify finds {finding}")),
    }
}

/// The result of an action during another process's operation, to be checked afterwards.
#[derive(Clone)]
pub(crate) struct Later<T>(Arc<Mutex<Option<T>>>);

impl<T> Later<T> {
    pub(crate) fn new() -> Self {
        Later(Arc::new(Mutex::new(None)))
    }

    pub(crate) fn set(&self, value: T) {
        *self.0.lock().unwrap() = Some(value);
    }

    pub(crate) fn get(&self) -> Result<T, String> {
        self.0.lock().unwrap().take().ok_or_else(|| "what was to come between did not".to_owned())
    }
}

/// Replaces a file with a copy of the same bytes, and keeps the file under another name, as a restored backup does.
pub(crate) fn replace(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    let old = disk.open(path, Access::Read)?;
    let mut bytes = vec![0; old.stat()?.size_bytes as usize];
    old.read_exact_at(&mut bytes, 0)?;
    let (staged, file) = disk.create_staged(path.parent().unwrap())?;
    file.write_all_at(&bytes, 0)?;
    disk.rename_new(path, Path::new("backup"))?;
    disk.rename_new(&staged, path)
}
