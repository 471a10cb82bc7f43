//! What scenarios are made of: processes on one disk, and what must hold.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stridemap::disk::{Access, Disk, OmittedStep, RealDisk, SimulatedDisk, omit_step};
use stridemap::{ErrorKind, ExternalFiles, Store, StoreOptions, Tensor};

use super::seat::Seat;
use crate::temporary;

/// Nothing, or what went wrong.
pub(crate) type Fate = Result<(), String>;

/// A disk, on which every process leaves out the same step, or none. Its processes run on one thread.
pub(crate) struct Play {
    pub(crate) disk: Arc<dyn Disk>,
    /// The same, where it is one.
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

    /// The same on the operating system's disk, for what a simulated one does not have.
    pub(crate) fn real(mut self) -> Self {
        self.disk = Arc::new(RealDisk::default());
        self
    }

    /// A process.
    pub(crate) fn seat(&self) -> Seat {
        Seat::new(&self.disk, self.seats.fetch_add(1, Ordering::Relaxed))
    }
}

pub(crate) const STORE: &str = "x.smap";

/// Who waits for a lock that another holds is refused at once: here nothing goes on while somebody waits.
pub(crate) fn options(seat: &Seat) -> StoreOptions {
    StoreOptions::new()
        .lock_timeout(Duration::ZERO)
        .external(ExternalFiles::Anywhere)
        .disk(Arc::new(seat.clone()))
}

pub(crate) fn create(seat: &Seat) -> Result<Store, String> {
    told("create", options(seat).create(STORE))
}

pub(crate) fn open(seat: &Seat) -> Result<Store, String> {
    told("open", options(seat).open(STORE))
}

pub(crate) fn vector(value: i64) -> Tensor {
    Tensor::from_vec(vec![value; 5], &[5]).unwrap()
}

pub(crate) fn bytes(count: usize, value: u8) -> Tensor {
    Tensor::from_vec(vec![value; count], &[count]).unwrap()
}

/// What must succeed.
pub(crate) fn told<T>(what: &str, done: stridemap::Result<T>) -> Result<T, String> {
    done.map_err(|e| format!("{what} ended in {e:?}"))
}

/// What must be refused, as this kind.
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

/// That a tensor has these elements, all of them the same.
pub(crate) fn has(store: &Store, name: &str, value: i64) -> Fate {
    let found: Vec<i64> = told("load", store.load(name).and_then(|tensor| tensor.read()))?;
    holds(format!("{name} is {found:?}, and not {value}"), found.iter().all(|&found| found == value))
}

/// That a new process finds these names, and nothing wrong.
pub(crate) fn is_whole(play: &Play, names: &[&str]) -> Fate {
    let store = open(&play.seat())?;
    let found = told("names", store.names())?;
    holds(format!("the names are {found:?}, and not {names:?}"), found == names)?;
    match told("verify", store.verify(|_| ()))?.findings.first() {
        None => Ok(()),
        Some(finding) => Err(format!("verify finds {finding}")),
    }
}

/// What is done in the midst of another's operation, to be looked at after it.
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

/// Puts another file of the same bytes in the place of one, which keeps another name: so a backup is made, and restored.
pub(crate) fn replace(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    let old = disk.open(path, Access::Read)?;
    let mut bytes = vec![0; old.stat()?.size_bytes as usize];
    old.read_exact_at(&mut bytes, 0)?;
    let (staged, file) = disk.create_staged(path.parent().unwrap())?;
    file.write_all_at(&bytes, 0)?;
    disk.rename_new(path, Path::new("backup"))?;
    disk.rename_new(&staged, path)
}
