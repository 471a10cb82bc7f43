//! Mappings, and what this process uses each file as.

pub(in crate::storage) mod address_space;
pub(in crate::storage) mod advice;
pub(in crate::storage) mod file_lock;
pub(in crate::storage) mod file_registry;
pub(in crate::storage) mod mapping;
