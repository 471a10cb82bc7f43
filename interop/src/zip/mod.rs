//! The members of a zip file: where each lies, and its bytes, unpacked.
//!
//! Names are data. Nothing is ever extracted to a path, so `../x` and `/etc/x` are names like any other.
//!
//! The zip crate reads the directory. It would look for it in more than one place, take memory for whatever fields an
//! entry has, read on behind the end of the directory, and let members overlap, so [`directory`] and [`members`] judge all
//! of that, the former before the crate sees the file: the memory that a zip file takes is in proportion to its length.

mod directory;
mod members;
#[cfg(test)]
mod tests;
mod unpack;
mod window;

pub(super) use members::{Member, Method, members};
