//! Storages: contiguous sequences of bytes, in a file or on the heap.

mod address_space;
mod advice;
mod backing;
mod check;
mod external;
mod externals;
mod file;
mod file_registry;
mod growth;
mod heap;
mod idle;
mod in_place;
mod kind;
mod known_tails;
mod live;
mod lock;
mod lock_wait;
mod mapping;
mod mutable;
mod opened;
mod poison;
mod queue;
mod rewrite;
mod staged;
mod verified;
mod writeback;
mod writer;

pub use advice::Advice;
pub(crate) use advice::Hint;
pub(crate) use backing::{Identity, Storage};
pub(crate) use check::{Damage, check_all, check_chunks};
pub use external::ExternalFile;
pub use externals::ExternalFiles;
pub(crate) use externals::{AccessOptions, ExternalOpener};
pub(crate) use file::open_whole;
pub(crate) use growth::{Grown, Growth, GrowthLock};
pub(crate) use heap::{AlignedBytes, resize_discarding, zeroed};
pub(crate) use in_place::{MAY_NEED_BLOCKS, StoreCallbacks};
pub use kind::StorageKind;
pub(crate) use known_tails::KnownTails;
pub(crate) use live::LiveFile;
pub(crate) use lock_wait::{LockWait, OnWait, WaitReports};
pub(crate) use mapping::{Atom, LiveMapping, MapPermit, zero_after_fork};
pub(crate) use mutable::{LockedStorage, MutableFile};
pub(crate) use opened::OpenStorages;
pub(crate) use poison::Poison;
pub(crate) use queue::Turn;
pub(crate) use rewrite::UnverifiedStorage;
pub(crate) use staged::StagedStorage;
pub(crate) use verified::{DamagedChunk, VerifiedStorage};
pub use writeback::Writeback;
pub(crate) use writer::StorageWriter;

/// The alignment, in bytes, of each tensor in a storage that several tensors share: a cache line, which is more than
/// the alignment of any element.
pub(crate) const ALIGNMENT_BYTES: u64 = 64;
