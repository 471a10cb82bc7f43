//! The library, as a user sees it.

mod crash;
mod damage;
mod processes;
mod python;
mod refusals;
mod scale;
mod store;
mod support;
