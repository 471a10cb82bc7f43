//! The algebra of size, stride and offset: PyTorch's rules, on numbers alone. No bytes, no I/O.
//!
//! One file a family of operations. Every operation takes a layout whose elements lie inside some storage and gives
//! one whose elements are among them, or refuses; so a view of a view never needs the storage to be asked. The one
//! exception is `as_strided`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod axis;
mod broadcast;
mod header;
mod index;
mod integer;
mod names;
mod overlap;
mod permute;
mod reach;
mod reached_bytes;
mod reinterpret;
mod repack;
mod reshape;
mod split;
mod subscript;
mod window;

pub use axis::{Axes, Axis};
pub use header::Layout;
#[cfg(feature = "ndarray")]
pub(crate) use header::contiguous_strides;
pub use integer::{Integer, Integers};
pub(crate) use integer::{count, counts, sealed};
pub(crate) use reach::{View, reached_bytes};
pub(crate) use reached_bytes::ReachedBytes;
pub(crate) use repack::{Placed, Repacked, repack};
pub use split::Sections;
pub use subscript::{Index, SliceBound};
