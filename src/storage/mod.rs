//! Storages: contiguous sequences of bytes, in a file or on the heap.

mod address_space;
mod advice;
mod backing;
mod external_file;
mod file_registry;
mod growth;
mod heap_bytes;
mod in_place;
mod kept_mappings;
mod known_tails;
mod live;
mod lock;
mod lock_queue;
mod lock_wait;
mod mapping;
mod mark;
mod mutable;
mod open_external;
mod open_file;
mod open_storages;
mod poison;
mod rewrite;
mod staged_storage;
mod storage_kind;
mod verified_reader;
mod writeback;
mod writer;

pub use advice::Advice;
pub(crate) use advice::Hint;
pub(crate) use backing::{Identity, ReadLock, Storage, Stored};
pub use external_file::ExternalFile;
pub(crate) use growth::{Grown, Growth, GrowthLock};
pub(crate) use heap_bytes::{AlignedBytes, extend, resize_discarding, zeroed};
pub(crate) use in_place::{InPlaceContext, MAY_NEED_BLOCKS};
pub(crate) use known_tails::KnownTails;
pub(crate) use live::LiveFile;
pub(crate) use lock_queue::Turn;
pub(crate) use lock_wait::{LockWait, OnWait, WaitReports};
pub(crate) use mapping::{Atom, LiveMapping, MapPermit};
pub(crate) use mark::is_interrupted;
pub(crate) use mutable::LockedStorage;
pub use open_external::ExternalFiles;
pub(crate) use open_external::{AccessOptions, ExternalOpener};
pub(crate) use open_file::{OpenContext, check_length, open_whole};
pub(crate) use open_storages::OpenStorages;
pub(crate) use poison::Poison;
pub(crate) use rewrite::{UnverifiedStorage, Without};
pub(crate) use staged_storage::StagedStorage;
pub use storage_kind::StorageKind;
pub(crate) use verified_reader::{DamagedChunk, Unreadable, VerifiedStorage};
pub use writeback::Writeback;
pub(crate) use writer::StorageWriter;

/// The alignment, in bytes, of each tensor in a storage that several tensors share: a cache line, which is more than
/// the alignment of any element.
pub(crate) const ALIGNMENT_BYTES: u64 = 64;
