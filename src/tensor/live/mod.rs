//! Tensors on live storages: many processes read and write them at once, element by element.

mod element;
mod open;
mod tensor;
mod wait;

pub use element::LiveElement;
pub(crate) use element::can_be_live;
pub use tensor::LiveTensor;
