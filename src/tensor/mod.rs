//! Tensors: headers over storages, their views, and what reads their elements.

mod access;
mod cast;
mod element;
mod gather;
mod header;
mod print;
mod scalar;
mod small_float;
mod stream;
mod view;

pub use element::Element;
pub use header::Tensor;
pub use scalar::Scalar;
pub use stream::Source;
