//! Scripts of commits on a simulated disk, and the content of the store after each commit.

use std::sync::Arc;

use crate::simulated::{Op, PowerCut, SimulatedDisk};
use stridemap::{Durability, ExternalFiles, Store, StoreOptions, Tensor};

use crate::content::Content;

pub(crate) const STORE: &str = "store";

/// The disk and the store of a script and of its recovery.
pub(crate) struct Setup {
    /// Creates an empty disk.
    pub(crate) disk: Box<dyn Fn() -> SimulatedDisk + Send + Sync>,
    /// The options of the script.
    pub(crate) options: Box<dyn Fn() -> StoreOptions + Send + Sync>,
    /// The options after a power cut.
    pub(crate) recovery: Box<dyn Fn() -> StoreOptions + Send + Sync>,
}

impl Default for Setup {
    /// External files are on the real disk.
    fn default() -> Self {
        let options = || StoreOptions::new().external(ExternalFiles::Anywhere);
        Setup { disk: Box::new(SimulatedDisk::new), options: Box::new(options), recovery: Box::new(options) }
    }
}

pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) play: Box<dyn Fn(&mut Recorder) + Send + Sync>,
}

impl Script {
    pub(crate) fn new(name: &'static str, play: impl Fn(&mut Recorder) + Send + Sync + 'static) -> Self {
        Script { name, play: Box::new(play) }
    }
}

/// The operations on a disk, and the expected contents.
pub(crate) struct Run {
    /// The state before the script.
    pub(crate) start: PowerCut,
    pub(crate) log: Vec<Op>,
    /// The content by the number of completed steps; `None` while there is no store.
    pub(crate) contents: Vec<Option<Content>>,
    /// The contents that are also allowed until the first step completes: a power cut may undo the current one.
    pub(crate) earlier: Vec<Option<Content>>,
    /// The number of operations on the store.
    pub(crate) operations: u64,
}

/// Marks in the log: a step began, a step returned, and nothing is promised until the next sync of everything.
pub(crate) const BEGAN: &str = "began";
pub(crate) const RETURNED: &str = "returned";
pub(crate) const UNSYNCED: &str = "unsynced";

/// Plays a script on a disk.
pub(crate) struct Recorder<'a> {
    pub(crate) disk: SimulatedDisk,
    pub(crate) setup: &'a Setup,
    /// The handle that is passed to steps.
    pub(crate) store: Option<Store>,
    contents: Vec<Option<Content>>,
    operations: u64,
}

impl<'a> Recorder<'a> {
    fn new(setup: &'a Setup) -> Self {
        Recorder { disk: (setup.disk)(), setup, store: None, contents: vec![None], operations: 0 }
    }

    pub(crate) fn play(script: &Script, setup: &'a Setup) -> Run {
        let mut recorder = Recorder::new(setup);
        let start = recorder.disk.power_cut();
        (script.play)(&mut recorder);
        Run {
            start,
            log: recorder.disk.log(),
            contents: std::mem::take(&mut recorder.contents),
            earlier: Vec::new(),
            operations: recorder.operations,
        }
    }

    pub(crate) fn options(&self) -> StoreOptions {
        (self.setup.options)().disk(Arc::new(self.disk.clone()))
    }

    /// Opens another handle.
    pub(crate) fn open(&self) -> Store {
        self.options().open(STORE).unwrap()
    }

    /// Returns the handle that is passed to steps.
    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Returns the content of the newest generation. It is read on a separate disk, so that no handle's memory is
    /// involved.
    fn content(&self) -> Content {
        Content::of(&self.open()).unwrap()
    }

    fn step<T>(&mut self, act: impl FnOnce(&Self) -> T) -> T {
        self.disk.mark(BEGAN);
        let done = act(self);
        self.disk.mark(RETURNED);
        self.operations += 1;
        done
    }

    pub(crate) fn create(&mut self) {
        let store = self.step(|recorder| recorder.options().create(STORE).unwrap());
        self.store = Some(store);
        self.contents.push(Some(self.content()));
    }

    /// Runs a step of at most one commit.
    pub(crate) fn commit<T>(&mut self, act: impl FnOnce(&Store) -> T) {
        self.step(|recorder| drop(act(recorder.store())));
        let now = self.content();
        let now = match self.contents.last() {
            Some(Some(before)) => now.carrying(before),
            _ => now,
        };
        self.contents.push(Some(now));
    }

    /// Changes elements in place without a flush.
    pub(crate) fn write(&mut self, act: impl FnOnce(&Store)) {
        self.step(|recorder| act(recorder.store()));
        let before = self.contents.last().unwrap().as_ref().unwrap();
        let now = self.content().unflushed(before);
        self.contents.push(Some(now));
    }

    /// Flushes everything that was changed in place.
    pub(crate) fn flush(&mut self, act: impl FnOnce(&Store)) {
        self.step(|recorder| act(recorder.store()));
        self.contents.push(Some(self.content()));
    }

    /// Runs commits without syncs: until everything is synced, the store may be damaged.
    pub(crate) fn unsynced(&mut self, act: impl FnOnce(&Store)) {
        self.disk.mark(UNSYNCED);
        let options = self.options().durability(Durability::Process);
        let store = if self.store.is_some() { options.open(STORE) } else { options.create(STORE) };
        let store = store.unwrap();
        self.step(|_| act(&store));
        self.contents.push(Some(self.content()));
        // The next step uses a new handle, which does not know of the mark yet.
        self.store = Some(self.open());
    }
}

pub(crate) fn vector(n: usize, seed: u32) -> Tensor {
    Tensor::from_vec((0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect(), &[n])
        .unwrap()
}
