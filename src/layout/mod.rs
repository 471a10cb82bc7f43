//! Arithmetic on headers, by PyTorch's rules, without bytes or I/O.
//!
//! There is one file per family of operations. Each operation takes a header whose elements are inside a storage, and
//! returns an error or a header that reaches only those elements. A view of a view therefore needs no check against
//! the storage. The one exception is `as_strided`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod axis;
mod broadcast;
mod coverage;
mod dims;
mod footprint;
mod integer;
mod names;
mod overlap;
mod permute;
mod reinterpret;
mod repack;
mod reshape;
mod slice;
mod split;
mod subscript;
mod window;

pub use axis::Axis;
pub(crate) use axis::{listed, resolve_axis};
pub(crate) use broadcast::{expand, squeeze};
pub(crate) use coverage::Coverage;
#[cfg(any(feature = "ndarray", feature = "dlpack"))]
pub(crate) use dims::strides_with_unused_as_one;
pub(crate) use dims::{contiguous, names_of, row_major};
pub(crate) use footprint::{footprint_bytes, for_each_range};
pub use integer::{Integer, Integers};
pub(crate) use integer::{non_negative, non_negative_list, sealed};
pub(crate) use names::{align_as, align_to, check_names_match, refine_names, rename};
pub(crate) use overlap::{MAX_STEPS_TOGETHER, overlaps, overlaps_itself, overlaps_within};
pub(crate) use permute::{movedim, permute, t, transpose};
pub(crate) use reinterpret::{view_as_complex, view_as_real, view_dtype};
pub(crate) use repack::{Repacked, repack};
pub(crate) use reshape::{flatten, unflatten, view, view_by};
pub(crate) use slice::{flip, index, narrow, offset_of, select, slice, unsqueeze};
pub use split::Sections;
pub(crate) use split::{chunk, split, tensor_split, unbind};
pub use subscript::Index;
pub(crate) use window::{as_strided, diagonal, sliding_window_view, unfold};
