//! The algebra of size, stride and offset: PyTorch's rules, on numbers alone. No bytes, no I/O.
//!
//! One file a family of operations. Every operation takes a layout whose elements lie inside some storage and gives
//! one whose elements are among them, or refuses; so a view of a view never needs the storage to be asked.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod header;
mod index;
mod permute;
mod reshape;

pub(crate) use header::Layout;
pub use index::Index;
