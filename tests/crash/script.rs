//! Scripts: commits on a simulated disk, and what the store holds after each.

use std::sync::Arc;

use stridemap::disk::{Op, PowerCut, SimulatedDisk};
use stridemap::{Durability, ExternalFiles, Store, StoreOptions, Tensor};

use crate::content::Content;

pub(crate) const STORE: &str = "store";

/// The disk and the store that a script runs on, and on which it is recovered.
pub(crate) struct Setup {
    /// An empty disk.
    pub(crate) disk: Box<dyn Fn() -> SimulatedDisk + Send + Sync>,
    /// How the script opens its stores.
    pub(crate) options: Box<dyn Fn() -> StoreOptions + Send + Sync>,
    /// How the store is opened after a power cut.
    pub(crate) recovery: Box<dyn Fn() -> StoreOptions + Send + Sync>,
}

impl Default for Setup {
    /// Files of others are real, wherever they are.
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

/// What was done to a disk, and what must be there.
pub(crate) struct Run {
    /// Before it all.
    pub(crate) start: PowerCut,
    pub(crate) log: Vec<Op>,
    /// By how many steps have returned; none while there is no store.
    pub(crate) contents: Vec<Option<Content>>,
    /// What may be there as well until the first step has returned: what is there now, a power cut may take back.
    pub(crate) earlier: Vec<Option<Content>>,
    /// Operations of the store.
    pub(crate) operations: u64,
}

/// In the log: a step of the script began; it returned; from here to the next sync of everything nothing is promised.
pub(crate) const BEGAN: &str = "began";
pub(crate) const RETURNED: &str = "returned";
pub(crate) const UNSYNCED: &str = "unsynced";

/// Plays a script on a disk.
pub(crate) struct Recorder<'a> {
    pub(crate) disk: SimulatedDisk,
    pub(crate) setup: &'a Setup,
    /// The handle that steps are given.
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

    /// Another handle.
    pub(crate) fn open(&self) -> Store {
        self.options().open(STORE).unwrap()
    }

    /// The handle that steps are given.
    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// What the newest generation holds, read on a disk of its own, where nothing is in anybody's memory.
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

    /// A step that is one commit, or none.
    pub(crate) fn commit<T>(&mut self, act: impl FnOnce(&Store) -> T) {
        self.step(|recorder| drop(act(recorder.store())));
        let now = self.content();
        let now = match self.contents.last() {
            Some(Some(before)) => now.carrying(before),
            _ => now,
        };
        self.contents.push(Some(now));
    }

    /// Changes elements in place, and leaves it at that.
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

    /// Commits that are not synced: until everything is, the store may be damaged.
    pub(crate) fn unsynced(&mut self, act: impl FnOnce(&Store)) {
        self.disk.mark(UNSYNCED);
        let options = self.options().durability(Durability::Process);
        let store = if self.store.is_some() { options.open(STORE) } else { options.create(STORE) };
        let store = store.unwrap();
        self.step(|_| act(&store));
        self.contents.push(Some(self.content()));
        // The next step is by a handle that has yet to find the mark.
        self.store = Some(self.open());
    }
}

pub(crate) fn vector(n: usize, seed: u32) -> Tensor {
    Tensor::from_vec((0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect(), &[n])
        .unwrap()
}
