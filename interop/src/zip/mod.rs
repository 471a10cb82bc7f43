//! The members of a zip file: their locations, and their unpacked bytes.
//!
//! Names are data. Nothing is ever extracted to a path, so `../x` and `/etc/x` are ordinary names.
//!
//! The memory used is proportional to the length of the zip file.

mod directory;
mod members;
#[cfg(test)]
mod tests;
mod unpack;

pub(super) use members::{Member, Method, members};
