//! Tensors: headers over storages, their views, and what reads their elements.

mod access;
mod element;
mod gather;
mod header;
mod print;
mod scalar;
mod stream;
mod view;

pub use element::Element;
pub use header::Tensor;
pub use scalar::Scalar;
pub use stream::Source;
