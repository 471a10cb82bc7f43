//! Tensors on live storages: many processes read and write them at once, element by element.

mod element;
mod open;
mod tensor;

pub use element::LiveElement;
pub(crate) use element::can_be_live;
pub use tensor::LiveTensor;
