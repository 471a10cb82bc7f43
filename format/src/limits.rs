//! The limits of the format, and the reasons for them. Each is enforced both when writing and when reading.

/// Dimensions of a tensor; the limit is PyTorch's.
pub const MAX_RANK: usize = 64;

/// Bytes in a tensor's name, an attribute's key, or the path of an external storage: `PATH_MAX` on Linux. This is long
/// enough for any module path, and short enough for a table entry.
pub const MAX_TEXT_BYTES: usize = 4096;

/// Bytes in one dimension's name. With [`MAX_RANK`] of them, an entry still fits in a node.
pub const MAX_DIM_NAME_BYTES: usize = 255;

/// Pages of 4 KiB in a node of a table. A leaf with one entry, which takes at most about 22 KiB, fits with room to
/// spare. So does an inner node with two keys of the maximum length.
pub const MAX_NODE_PAGES: u16 = 9;

/// Bytes in a manifest. Its lists have their own limits, so only a malformed file, or a commit of names or paths of
/// nearly the maximum length, can exceed this limit. Such a commit is refused.
pub const MAX_MANIFEST_BYTES: u64 = 16 * 1024 * 1024;

/// Changes of storages in a manifest; changes of tensors have the same limit. A new table is written when the changes
/// exceed about the square root of the table's entries, so tables of more than 2^24 entries are rewritten a little
/// earlier. In memory, a change can take twenty times its size in the file, so a limit in bytes would not be enough.
pub const MAX_CHANGES: usize = 1 << 12;

/// Garbage storages in a manifest: those that one commit drops, and those that readers still need. A commit with more
/// is refused.
pub const MAX_GARBAGE: usize = 1 << 20;

/// Bytes in all attributes together: scopes, keys and values, and 16 for each attribute. Every commit writes them
/// again.
pub const MAX_ATTRIBUTES_BYTES: usize = 1024 * 1024;

/// Bytes in a storage: the range of a signed file offset.
pub const MAX_STORAGE_BYTES: u64 = i64::MAX as u64;

/// Bytes of address space that a storage may ask a reader to reserve. This is half of the address space of a process
/// on today's 64-bit machines, so a malformed record cannot request all of it.
pub const MAX_RESERVED_BYTES: u64 = 1 << 46;
