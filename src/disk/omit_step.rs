//! Steps of the protocol that a test can leave out, by name, to show what they prevent: syncs, renames, locks, and
//! checks whether another process has invalidated something.
//!
//! Without the `simulation` feature, `step!` is only its expression, and `if_test_omits_step!` is nothing.

#[cfg(feature = "simulation")]
pub(crate) use omitted::{Omit, omits};
#[cfg(feature = "simulation")]
pub use omitted::{OmittedStep, omit_step};

/// Takes a step. If a test leaves it out, the value is that of a success: `Ok(())`, `Ok(true)` or `true`.
#[cfg(not(feature = "simulation"))]
macro_rules! step {
    ($name:literal, $take:expr) => {
        $take
    };
}

#[cfg(feature = "simulation")]
macro_rules! step {
    ($name:literal, $take:expr) => {
        if $crate::disk::omits($name) { $crate::disk::Omit::omit() } else { $take }
    };
}

/// Does something only if a test leaves out the step that comes next or has just been taken: gives a variable a
/// different value, or evaluates an expression, such as a return.
macro_rules! if_test_omits_step {
    ($name:literal, $variable:ident = $value:expr) => {
        #[cfg(feature = "simulation")]
        let $variable = if $crate::disk::omits($name) { $value } else { $variable };
    };
    ($name:literal, $act:expr) => {
        #[cfg(feature = "simulation")]
        if $crate::disk::omits($name) {
            $act;
        }
    };
}

pub(crate) use {if_test_omits_step, step};

/// The step that a test leaves out on its thread.
#[cfg(feature = "simulation")]
mod omitted {
    use std::cell::Cell;
    use std::marker::PhantomData;

    thread_local! {
        static OMITTED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Leaves out one step on this thread, or none, until the returned value is dropped. `name` is the first argument
    /// of `step!`.
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
}
