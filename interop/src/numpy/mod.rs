//! NumPy's file formats.

mod dtype;
mod header;
pub mod npy;
pub mod npz;
mod order;

pub(super) use header::Reading;
pub use order::Order;
