//! The commands that free disk space, find damage and salvage stores.

pub(crate) mod compact;
pub(crate) mod du;
mod du_file;
mod du_patterns;
pub(crate) mod salvage;
pub(crate) mod verify;
mod verify_file;
