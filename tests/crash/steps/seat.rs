//! One of several simulated processes on a disk. Other processes can act between its operations.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use stridemap::disk::Disk;

use crate::hooked::{Hooked, Quirks};

/// Whether an action runs before or after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

type Act = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// An action that runs once, at the first operation with this name on a path with this ending.
struct Trap {
    when: When,
    operation: &'static str,
    ending: &'static str,
    act: Act,
}

#[derive(Clone)]
pub(crate) struct Seat {
    disk: Arc<dyn Disk>,
    quirks: Quirks,
    traps: Arc<Mutex<Vec<Trap>>>,
    countdown: Arc<Mutex<Option<(u64, Act)>>>,
}

impl Seat {
    /// Creates a process. `number` is unique to it in the test, and gives its files a device number of their own.
    /// Otherwise this process's registry of locks would make the seats exclude each other, which separate processes do
    /// not share.
    pub(crate) fn new(disk: &Arc<dyn Disk>, number: u64) -> Self {
        // Nothing reports new names on a simulated disk.
        let quirks = Quirks { lacks_watches: true, device_shift: number << 40, ..Quirks::default() };
        Seat { disk: Arc::clone(disk), quirks, traps: Arc::default(), countdown: Arc::default() }
    }

    /// Changes the quirks of the file system.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Quirks)) -> Self {
        change(&mut self.quirks);
        self
    }

    /// Returns the disk as this process uses it.
    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        let hook = |when| {
            let seat = self.clone();
            Arc::new(move |operation: &str, path: &Path| seat.fire(when, operation, path))
        };
        let (before, after) = (hook(When::Before), hook(When::After));
        let disk = Arc::clone(&self.disk);
        Arc::new(Hooked { disk, before, after, quirks: self.quirks, ..Hooked::default() })
    }

    /// Runs an action once, at an operation with this name in the trait, on a path with this ending.
    pub(crate) fn trap(
        &self,
        when: When,
        operation: &'static str,
        ending: &'static str,
        act: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) {
        self.traps.lock().unwrap().push(Trap { when, operation, ending, act: Box::new(act) });
    }

    /// Runs an action once, before the operation with this number.
    pub(crate) fn before_operation(&self, nth: u64, act: impl FnOnce() -> io::Result<()> + Send + 'static) {
        *self.countdown.lock().unwrap() = Some((nth, Box::new(act)));
    }

    /// Returns the number of operations left until the action of `before_operation` runs.
    pub(crate) fn operations_left(&self) -> Option<u64> {
        self.countdown.lock().unwrap().as_ref().map(|(left, _)| *left)
    }

    /// Makes an operation fail once.
    pub(crate) fn fail(&self, operation: &'static str, ending: &'static str) {
        self.trap(When::Before, operation, ending, || Err(io::Error::other("injected fault")));
    }

    /// Returns whether all actions have run.
    pub(crate) fn is_done(&self) -> bool {
        self.traps.lock().unwrap().is_empty() && self.countdown.lock().unwrap().is_none()
    }

    fn fire(&self, when: When, operation: &str, path: &Path) -> io::Result<()> {
        if when == When::Before {
            self.count()?;
        }
        let path = path.to_string_lossy();
        let mut traps = self.traps.lock().unwrap();
        let is_due =
            |trap: &Trap| (trap.when, trap.operation) == (when, operation) && path.ends_with(trap.ending);
        let due = traps.iter().position(is_due).map(|at| traps.remove(at));
        drop(traps);
        due.map_or(Ok(()), |trap| (trap.act)())
    }

    fn count(&self) -> io::Result<()> {
        let mut countdown = self.countdown.lock().unwrap();
        match countdown.take() {
            Some((0, act)) => {
                drop(countdown);
                act()
            }
            Some((left, act)) => {
                *countdown = Some((left - 1, act));
                Ok(())
            }
            None => Ok(()),
        }
    }
}
