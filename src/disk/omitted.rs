//! The step of the protocol that a thread leaves out.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static OMITTED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Leaves out one step on this thread, or none, until the returned value is dropped. The names of the steps are in
/// the source code.
pub fn omit_step(name: Option<&'static str>) -> OmittedStep {
    OmittedStep { before: OMITTED.replace(name), _not_send: PhantomData }
}

/// A step that a thread leaves out until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct OmittedStep {
    before: Option<&'static str>,
    _not_send: PhantomData<*const ()>,
}

impl Drop for OmittedStep {
    fn drop(&mut self) {
        OMITTED.set(self.before);
    }
}

/// Whether this thread leaves out the step.
pub(crate) fn omits(name: &str) -> bool {
    OMITTED.get() == Some(name)
}

/// A value that a step can have when it is left out: that of a success.
pub(crate) trait Omit {
    fn omit() -> Self;
}

impl Omit for bool {
    fn omit() -> Self {
        true
    }
}

impl<E> Omit for Result<(), E> {
    fn omit() -> Self {
        Ok(())
    }
}

impl<E> Omit for Result<bool, E> {
    fn omit() -> Self {
        Ok(true)
    }
}
