//! Processes and threads that share a store.

pub(crate) mod forks;
pub(crate) mod hazards;
pub(crate) mod kept_files;
pub(crate) mod mappings;
pub(crate) mod memory;
pub(crate) mod processes;
pub(crate) mod threads;
