//! File systems and limits of the system: real mounts, small limits, and paths that change.

pub(crate) mod copy_on_write;
pub(crate) mod limits;
mod locks;
pub(crate) mod overlay;
pub(crate) mod replaced;
mod shared_blocks;
