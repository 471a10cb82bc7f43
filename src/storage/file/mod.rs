//! What a storage is: kinds, opening, external files, memory.

pub(in crate::storage) mod backing;
pub(in crate::storage) mod external_file;
pub(in crate::storage) mod heap_bytes;
pub(in crate::storage) mod in_place;
pub(in crate::storage) mod live;
mod lock_files;
pub(in crate::storage) mod mark;
pub(in crate::storage) mod mutable;
pub(in crate::storage) mod mutable_access;
pub(in crate::storage) mod open_external;
pub(in crate::storage) mod open_storages;
pub(in crate::storage) mod poison;
mod read_file;
pub(in crate::storage) mod replace;
pub(in crate::storage) mod storage_kind;
