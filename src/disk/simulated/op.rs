use std::sync::Arc;

/// One thing that was done to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// A file came to be, without a name yet.
    CreateFile(u64),
    /// A directory came to be, without a name yet.
    CreateDir(u64),
    /// Names in a directory changed, at once: each goes to a file, or away.
    Names {
        /// The directory.
        dir: u64,
        /// Names and what they stand for from then on.
        changes: Vec<(String, Option<u64>)>,
    },
    /// Bytes of a file were written.
    Write {
        /// The file.
        file: u64,
        /// Where.
        offset_bytes: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// A file's length was set.
    SetLen {
        /// The file.
        file: u64,
        /// To what.
        length_bytes: u64,
    },
    /// A file's bytes and length became durable.
    Sync(u64),
    /// A directory's names became durable.
    SyncDir(u64),
    /// Everything became durable.
    SyncAll,
    /// Not an operation: something that a test wants to find in the log.
    Mark(String),
}
