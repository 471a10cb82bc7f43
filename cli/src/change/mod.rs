//! The commands that change a store, or write tensors to files.

pub(crate) mod append;
pub(crate) mod attr;
mod cast;
pub(crate) mod convert;
pub(crate) mod copy;
pub(crate) mod edit;
pub(crate) mod export;
mod fuse;
pub(crate) mod import;
pub(crate) mod mv;
mod rename;
mod select;
mod shared_bytes;
mod stack;
mod stdin;
mod target;
