//! The library, as a user sees it.

mod crash;
mod store;
