//! Storages: contiguous sequences of bytes, in a file or on the heap.
//!
//! | term | meaning | file |
//! |---|---|---|
//! | advice | what the kernel is told about how a mapping is read | `map/advice.rs` |
//! | address space | what a mapping reserves, so that a storage can grow without moving | `map/address_space.rs` |
//! | checked chunk | a chunk that a handle which verifies what it reads has compared with its digest | `digest/chunk_checks.rs` |
//! | chunk digest | the digest of 1 MiB of a sealed storage, compared when it is read | `digest/verified_reader.rs` |
//! | external file | a file outside the store that a storage uses in place | `file/external_file.rs`, `file/open_external.rs` |
//! | file registry | what this process maps and locks each file as, so that two kinds never meet in one file | `map/file_registry.rs` |
//! | file lock | the lock of a storage's file, shared by the guards of one process | `map/file_lock.rs`, `lock/take.rs` |
//! | growth | rows written after the end of a sealed storage, invisible until they are committed | `grow/growth.rs` |
//! | heap storage | bytes in memory, of a tensor that was never saved | `file/heap_bytes.rs` |
//! | hint | an advice, given ahead of a read | `map/advice.rs` |
//! | in place | how mutable and live storages change: the file itself, not a new one | `file/in_place.rs` |
//! | kept mapping, kept file | a mapping or an open file that is reused by the next load of its storage | `file/open_storages.rs`, `../disk/kept.rs` |
//! | kind | sealed, mutable, live or external: who may change the bytes | `file/storage_kind.rs` |
//! | known tail | the last, incomplete chunk of a storage that a handle has appended to, and its digest so far | `grow/known_tails.rs` |
//! | live storage | elements that any process changes at any time, by atomics | `file/live.rs` |
//! | lock queue | the order in which waiting writers and readers get a file's lock | `lock/lock_queue.rs` |
//! | mapping | a file in memory; the unsafe code | `map/mapping.rs` |
//! | mark | the byte after a mutable storage that says that a change of it has begun | `file/mark.rs` |
//! | mutable storage | elements that a guard changes under the file's lock | `file/mutable.rs` |
//! | open storages | the storages that a handle has open, so that equal ids share one file | `file/open_storages.rs` |
//! | poison | a failed sync, after which nothing more is written through a handle | `file/poison.rs` |
//! | read ahead | what will be read of a file that is far away, announced so that it is fetched meanwhile | `read_ahead.rs` |
//! | read lock | the lock under which the bytes of a mutable storage are read | `file/mutable_access.rs` |
//! | replacement | new bytes for a storage that is changed in place, from a copy of it elsewhere | `file/replace.rs` |
//! | rewrite | copying the bytes of a storage to a new one, whole or without those that no tensor reaches | `digest/rewrite.rs` |
//! | spool | an unfinished file of bytes that were received, and are not in their storages yet | `grow/spool.rs` |
//! | stages | the staged storages of one commit, with one that small tensors share | `grow/stages.rs` |
//! | staged storage | a file that is written, perhaps by other processes, and not yet published | `grow/staged_storage.rs`, `grow/writer.rs` |
//! | storage | the bytes that tensors share, whatever holds them | `file/backing.rs` |
//! | wait | how long a lock is waited for, and what is told meanwhile | `lock/lock_wait.rs` |
//! | writeback | the start of writing to the disk before the sync | `grow/writeback.rs` |

mod digest;
mod file;
mod grow;
mod lock;
mod map;
mod open_file;
mod read_ahead;

pub(crate) use digest::chunk_checks::{CheckedChunks, ChunkChecks};
pub(crate) use digest::rewrite::{ByteSource, UnverifiedStorage, Without, repacked_bytes};
pub(crate) use digest::verified_reader::{DamagedChunk, Unreadable, VerifiedStorage};
pub(crate) use file::backing::{Identity, Storage, Stored};
pub use file::external_file::ExternalFile;
pub(crate) use file::heap_bytes::{AlignedBytes, extend, resize_discarding, zeroed};
pub(crate) use file::in_place::{InPlaceContext, MAY_NEED_BLOCKS};
pub(crate) use file::live::LiveFile;
pub(crate) use file::mark::is_interrupted;
pub(crate) use file::mutable::LockedStorage;
pub(crate) use file::mutable_access::ReadLock;
pub(crate) use file::open_external::{AccessOptions, ExternalOpener};
pub(crate) use file::open_storages::OpenStorages;
pub(crate) use file::poison::Poison;
pub(crate) use file::replace::replace_bytes;
pub use file::storage_kind::StorageKind;
pub(crate) use grow::growth::{Grown, Growth, GrowthLock};
pub(crate) use grow::known_tails::KnownTails;
pub(crate) use grow::spool::Spool;
pub(crate) use grow::staged_storage::StagedStorage;
pub(crate) use grow::stages::{OWN_STORAGE_BYTES, Stages};
pub use grow::writeback::Writeback;
pub(crate) use grow::writer::StorageWriter;
pub(crate) use lock::lock_queue::Turn;
pub(crate) use lock::lock_wait::{LockWait, OnWait, WaitReports};
pub use map::advice::Advice;
pub(crate) use map::advice::Hint;
pub(crate) use map::mapping::{Atom, LiveMapping, MapPermit};
pub(crate) use open_file::{OpenContext, check_length, open_whole};
pub(crate) use read_ahead::{
    MAX_GAP_BYTES as READ_AHEAD_GAP_BYTES, RANGE_BYTES as READ_AHEAD_RANGE_BYTES,
    WINDOW_BYTES as READ_AHEAD_WINDOW_BYTES,
};

/// The alignment, in bytes, of each tensor in a storage that several tensors share: a cache line, which is more than
/// the alignment of any element.
pub(crate) const ALIGNMENT_BYTES: u64 = 64;
