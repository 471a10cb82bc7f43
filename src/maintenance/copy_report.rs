//! The result of copying a store.

/// The result of copying a store: see [`Store::copy_to`](crate::Store::copy_to).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Copied {
    /// The number of tensors in the copy.
    pub tensor_count: u64,
    /// The bytes of storages that were written.
    pub copied_bytes: u64,
    /// The bytes of storages that share their blocks on disk with those of the source, until one of the two is
    /// written.
    pub shared_bytes: u64,
}
