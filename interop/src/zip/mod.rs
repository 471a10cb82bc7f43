//! The members of a zip file: where each lies, and its bytes, unpacked.
//!
//! Names are data. Nothing is ever extracted to a path, so `../x` and `/etc/x` are names like any other.
//!
//! The memory that a zip file takes is in proportion to its length.

mod directory;
mod members;
#[cfg(test)]
mod tests;
mod unpack;

pub(super) use members::{Member, Method, members};
