//! Tensors on live storages: read and written at once by everybody, element by element.

mod element;
mod tensor;
mod walk;

pub use element::LiveElement;
pub(crate) use element::is_live;
pub use tensor::LiveTensor;
