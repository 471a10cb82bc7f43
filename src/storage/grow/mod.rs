//! Writing storages, and growing them.

pub(in crate::storage) mod growth;
pub(in crate::storage) mod known_tails;
pub(in crate::storage) mod spool;
pub(in crate::storage) mod staged_storage;
pub(in crate::storage) mod stages;
pub(in crate::storage) mod writeback;
pub(in crate::storage) mod writer;
