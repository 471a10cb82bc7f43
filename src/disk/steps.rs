//! Steps of the protocol that a test can leave out, by name, to show what they prevent: syncs, renames, locks, and
//! checks whether another process has invalidated something.
//!
//! Without the `simulation` feature, `step!` is only its expression, and `without_step!` is nothing.

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
macro_rules! without_step {
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

pub(crate) use {step, without_step};
