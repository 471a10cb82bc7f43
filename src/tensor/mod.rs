//! Tensors: headers over storages, their views, and access to their elements.

mod access;
mod arithmetic;
mod cast;
mod copy;
#[cfg(feature = "dlpack")]
mod dlpack;
mod element;
mod guard;
mod header;
mod held_lock;
mod in_place;
mod index_select;
mod kernel;
mod live;
mod locking;
#[cfg(feature = "ndarray")]
mod ndarray;
mod prefetch;
mod print;
mod read_lock;
mod scalar;
mod small_float;
mod source;
mod statistics;
mod stream;
mod typed;
mod view;

pub use element::Element;
pub use guard::{ExclusiveGuard, SharedGuard};
pub use header::Tensor;
pub use held_lock::HeldLock;
pub use in_place::Operand;
pub(crate) use live::can_be_live;
pub use live::{LiveElement, LiveTensor};
pub use print::PrintOptions;
pub use scalar::Scalar;
pub use small_float::{F8E4M3FN, F8E8M0FNU};
pub use source::Source;
pub use statistics::Statistics;
pub use typed::TypedTensor;
