//! The library, as a user sees it.

mod store;
