//! Storages: contiguous sequences of bytes, in a file or on the heap.

mod digest;
mod file;
mod grow;
mod lock;
mod map;
mod open_file;

pub(crate) use digest::rewrite::{UnverifiedStorage, Without};
pub(crate) use digest::verified_reader::{DamagedChunk, Unreadable, VerifiedStorage};
pub(crate) use file::backing::{Identity, ReadLock, Storage, Stored};
pub use file::external_file::ExternalFile;
pub(crate) use file::heap_bytes::{AlignedBytes, extend, resize_discarding, zeroed};
pub(crate) use file::in_place::{InPlaceContext, MAY_NEED_BLOCKS};
pub(crate) use file::live::LiveFile;
pub(crate) use file::mark::is_interrupted;
pub(crate) use file::mutable::LockedStorage;
pub use file::open_external::ExternalFiles;
pub(crate) use file::open_external::{AccessOptions, ExternalOpener};
pub(crate) use file::open_storages::OpenStorages;
pub(crate) use file::poison::Poison;
pub use file::storage_kind::StorageKind;
pub(crate) use grow::growth::{Grown, Growth, GrowthLock};
pub(crate) use grow::known_tails::KnownTails;
pub(crate) use grow::staged_storage::StagedStorage;
pub use grow::writeback::Writeback;
pub(crate) use grow::writer::StorageWriter;
pub(crate) use lock::lock_queue::Turn;
pub(crate) use lock::lock_wait::{LockWait, OnWait, WaitReports};
pub use map::advice::Advice;
pub(crate) use map::advice::Hint;
pub(crate) use map::mapping::{Atom, LiveMapping, MapPermit};
pub(crate) use open_file::{OpenContext, check_length, open_whole};

/// The alignment, in bytes, of each tensor in a storage that several tensors share: a cache line, which is more than
/// the alignment of any element.
pub(crate) const ALIGNMENT_BYTES: u64 = 64;
