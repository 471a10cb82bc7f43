//! Storages: flat runs of bytes, in a file or on the heap.

mod address_space;
mod digests;
mod external;
mod externals;
mod file;
mod growth;
mod heap;
mod in_place;
mod live;
mod lock;
mod mapping;
mod mutable;
mod stored;
mod writer;

pub(crate) use digests::VerifiedStorage;
pub(crate) use external::ExternalFile;
pub use externals::ExternalFiles;
pub(crate) use externals::{ExternalOptions, Externals};
pub(crate) use file::open_whole;
pub(crate) use growth::{Grown, Growth, GrowthLock};
pub(crate) use heap::{AlignedBytes, out_of_memory};
pub(crate) use in_place::InUse;
pub(crate) use live::LiveFile;
pub(crate) use mapping::{Atom, LiveMapping, MapPermit};
pub(crate) use mutable::{LockedStorage, MutableFile};
pub(crate) use stored::{Identity, Storage};
pub(crate) use writer::{StagedStorage, StorageWriter};

/// Where a tensor may begin in a storage that it shares: a cache line, and more than any element's alignment.
pub(crate) const ALIGNMENT_BYTES: u64 = 64;
