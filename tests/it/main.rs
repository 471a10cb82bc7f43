//! The library, as a user sees it.

mod crash;
mod damage;
mod processes;
mod refusals;
mod scale;
mod store;
mod support;
