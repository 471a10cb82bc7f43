//! Arithmetic on size, stride and offset, by PyTorch's rules, without bytes or I/O.
//!
//! There is one file per family of operations. Each operation takes a layout whose elements are inside a storage, and
//! returns an error or a layout that reaches only those elements. A view of a view therefore needs no check against
//! the storage. The one exception is `as_strided`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod axis;
mod broadcast;
mod coverage;
mod footprint;
mod integer;
mod names;
mod overlap;
mod permute;
mod reinterpret;
mod repack;
mod reshape;
mod size_and_stride;
mod slice;
mod split;
mod subscript;
mod window;

pub use axis::Axis;
pub(crate) use axis::listed;
pub(crate) use coverage::Coverage;
pub(crate) use footprint::{footprint_bytes, for_each_range};
pub use integer::{Integer, Integers};
pub(crate) use integer::{non_negative, non_negative_list, sealed};
pub(crate) use overlap::MAX_STEPS_TOGETHER;
pub(crate) use repack::{Repacked, RepackedView, repack};
pub use size_and_stride::Layout;
#[cfg(feature = "ndarray")]
pub(crate) use size_and_stride::contiguous_strides;
pub use split::Sections;
pub use subscript::Index;
