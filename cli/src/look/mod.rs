//! The commands that look at stores and files, and change nothing.

pub(crate) mod chart;
pub(crate) mod counted_once;
pub(crate) mod info;
pub(crate) mod ls;
pub(crate) mod map;
mod modules;
pub(crate) mod palette;
pub(crate) mod reduce;
pub(crate) mod report;
pub(crate) mod sharing;
pub(crate) mod show;
mod size_pattern;
pub(crate) mod stats;
mod summary;
mod tables;
pub(crate) mod targets;
pub(crate) mod tree;

use stridemap::{DType, Statistics, Tensor};

pub(crate) use tables::format_dim_names;

/// Returns whether a tensor has several elements, all of which are the same finite number. Tensors of complex numbers
/// or pairs are never called constant, because their statistics are those of magnitudes, or of the numbers in a pair.
fn is_constant(tensor: &Tensor, statistics: &Statistics) -> bool {
    let is_single = !tensor.dtype().is_complex() && tensor.dtype() != DType::F4E2M1FNx2;
    is_single
        && statistics.count > 1
        && statistics.finite_count() == statistics.count
        && statistics.min == statistics.max
}
