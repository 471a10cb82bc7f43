//! The limits of the format, and the reasons for them. Each is enforced both when writing and when reading.

/// The maximum number of dimensions of a tensor. PyTorch has the same limit.
pub const MAX_RANK: usize = 64;

/// The maximum number of bytes in the name of a tensor or tag, an attribute's scope or key, a message, or an external
/// path. This is `PATH_MAX` on Linux, long enough for any module path, and short enough for a table entry.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The maximum number of bytes in the name of a dimension. A table entry with [`MAX_RANK`] such names still fits in a
/// node.
pub const MAX_DIM_NAME_BYTES: usize = 255;

/// The maximum number of pages of 4 KiB in a node of a table. A leaf with one entry takes at most about 22 KiB, and an
/// inner node with two keys of the maximum length takes less, so both fit with room to spare.
pub const MAX_NODE_PAGES: u16 = 9;

/// The maximum level of a node of a table. An inner node has at least two children, so a table of more levels has more
/// than 2^40 leaves, or 4 PiB. A reader holds a node of each level in memory.
pub const MAX_NODE_LEVEL: u16 = 40;

/// The maximum length of a manifest in bytes. If the changes since the last table would exceed it, a new table is
/// written. Attributes have a limit of their own, so only a malformed file exceeds this one.
pub const MAX_MANIFEST_BYTES: u64 = 16 * 1024 * 1024;

/// The maximum number of changes of each tree of the table in a manifest. A new table is written when the square of
/// the changes exceeds twice the product of the table's entries and the changes of a commit. Because of this limit, a
/// table of more than 2^23 entries is rewritten earlier, or of fewer if commits make several changes. In memory, a
/// change can take twenty times its size in the file, so a limit in bytes would not be enough.
pub const MAX_CHANGES: usize = 1 << 12;

/// The maximum size of all attributes together, in bytes: their scopes, keys and values, and 16 for each attribute.
/// Every commit writes all attributes again.
pub const MAX_ATTRIBUTES_BYTES: usize = 1024 * 1024;

/// The maximum length of a storage in bytes: the range of a signed file offset.
pub const MAX_STORAGE_BYTES: u64 = i64::MAX as u64;

/// The maximum number of bytes of address space that a storage may ask a reader to reserve. This is half of the address
/// space of a process on x86-64, so a malformed record cannot request all of it.
pub const MAX_RESERVED_BYTES: u64 = 1 << 46;

/// The maximum length of an object of a remote in bytes. A failed upload repeats at most this much.
pub const MAX_OBJECT_BYTES: u64 = 65 * 1024 * 1024;

/// The maximum length of a segment of a file of a remote in bytes. Its object also has room for the digests of its blocks.
pub const MAX_SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// The maximum length of a remote manifest in bytes: that of a manifest, and as much again for the index and for the
/// replaced objects, rounded up.
pub const MAX_REMOTE_MANIFEST_BYTES: u64 = 64 * 1024 * 1024;

/// The maximum number of pages of the index of a remote. Pages of the usual length then have 20 million files.
pub const MAX_INDEX_PAGES: usize = 1 << 16;

/// The maximum length of a page of the index of a remote in bytes. Writers make pages of at most
/// [`PAGE_TARGET_BYTES`](crate::remote::PAGE_TARGET_BYTES), unless one file has more segments than that. A file can
/// therefore have about 70,000 segments of 64 MiB, which together are 4 TB.
pub const MAX_PAGE_BYTES: u64 = 4 * 1024 * 1024;

/// The maximum number of files of a page of the index of a remote. A page of the usual length cannot have as many. In
/// memory, a file takes twenty times its least size in the page, so a limit in bytes would not be enough.
pub const MAX_PAGE_ENTRIES: usize = 1 << 13;

/// The maximum number of replaced objects in a remote manifest. Their names take half of its maximum length.
pub const MAX_REPLACED: usize = 1 << 20;
