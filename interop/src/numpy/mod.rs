//! NumPy's file formats.

mod array;
mod dtype;
mod header;
pub mod npy;
pub mod npz;
mod text;
