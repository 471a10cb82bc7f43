//! Every cap of the format, with its reason. Each is enforced when writing as well as when reading.

/// Dimensions of a tensor. PyTorch's own limit.
pub const MAX_RANK: usize = 64;

/// Bytes of a tensor's name. Long enough for any module path, short enough for a row of a table.
pub const MAX_NAME_BYTES: usize = 4096;

/// Bytes of one dimension's name. With [`MAX_RANK`] of them an entry stays within [`MAX_ENTRY_BYTES`].
pub const MAX_DIM_NAME_BYTES: usize = 255;

/// Bytes of the path of an external storage: `PATH_MAX` of Linux.
pub const MAX_PATH_BYTES: usize = 4096;

/// Bytes of one entry of a table, its checksum included. The largest legal record takes about 22 KiB.
pub const MAX_ENTRY_BYTES: u64 = 32 * 1024;

/// Bytes of a manifest. What it may hold has limits of its own, so this is reached only by changes whose names or paths are
/// nearly as long as they may be, or by a lie; such a commit is refused.
pub const MAX_MANIFEST_BYTES: u64 = 16 * 1024 * 1024;

/// Changes of storages in a manifest, and changes of tensors, each. A delta is about the square root of its table, so a
/// table of more than 2^24 entries is written a little earlier. A change takes up to twenty times as much of memory as of
/// the file, which is why bytes alone are no limit.
pub const MAX_CHANGES: usize = 1 << 12;

/// Storages of garbage in a manifest: what one commit drops and what readers hold back. More is a commit that is refused.
pub const MAX_GARBAGE: usize = 1 << 20;

/// Bytes of all attributes together, keys and values: they are written again at every commit.
pub const MAX_ATTRIBUTES_BYTES: usize = 1024 * 1024;

/// Bytes of a storage: what a signed file offset can address.
pub const MAX_STORAGE_BYTES: u64 = i64::MAX as u64;

/// Bytes of address space that a storage asks a reader to reserve: half of what a process has on today's 64-bit machines,
/// so that a record that lies cannot ask for all of it.
pub const MAX_RESERVED_BYTES: u64 = 1 << 46;
