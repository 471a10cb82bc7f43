//! The operations that a simulated disk logs.

use std::sync::Arc;

/// An operation on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum Op {
    /// A file was created, without a name yet.
    CreateFile(u64),
    /// A directory was created, without a name yet.
    CreateDir(u64),
    /// Names in a directory changed, all at once.
    Names {
        /// The directory.
        dir: u64,
        /// The names, and the file that each now refers to; `None` for a removed name.
        changes: Vec<(String, Option<u64>)>,
    },
    /// Bytes of a file were written.
    Write {
        /// The file.
        file: u64,
        /// The offset.
        offset_bytes: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// A file's length was set.
    SetLen {
        /// The file.
        file: u64,
        /// The new length.
        length_bytes: u64,
    },
    /// A file's bytes and length became durable.
    Sync(u64),
    /// A directory's names became durable.
    SyncDir(u64),
    /// Everything became durable.
    SyncAll,
    /// Not an operation: a mark that a test finds in the log.
    Mark(String),
}
