//! What a store must contain.

use std::collections::BTreeMap;
use std::rc::Rc;

use stridemap::Snapshot;

/// The elements of the tensors of a generation, by name.
pub(crate) type State = BTreeMap<String, Rc<Vec<i32>>>;

/// A store as it must be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) newest: Rc<State>,
    pub(crate) generation: u64,
    pub(crate) tags: BTreeMap<String, (u64, Rc<State>)>,
}

impl Model {
    /// Changes the newest state, as one commit.
    pub(crate) fn commit(&mut self, change: impl FnOnce(&mut State)) {
        change(Rc::make_mut(&mut self.newest));
        self.generation += 1;
    }
}

/// Checks that a generation has exactly these tensors.
#[track_caller]
pub(crate) fn check(snapshot: &Snapshot, expected: &State, what: &str) {
    let names = snapshot.names().unwrap();
    let wanted: Vec<&String> = expected.keys().collect();
    assert!(names.iter().eq(wanted.iter().copied()), "{what}: {names:?} instead of {wanted:?}");
    for (name, elements) in expected {
        let found = snapshot.load(name).and_then(|tensor| tensor.read::<i32>());
        let found = found.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        assert_eq!(found, **elements, "{what}: {name}");
    }
}
