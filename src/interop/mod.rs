//! From and to what others use.

#[cfg(feature = "interop")]
mod adopt;
#[cfg(feature = "interop")]
mod contents;
#[cfg(feature = "dlpack")]
mod dlpack;
#[cfg(feature = "interop")]
mod file;
#[cfg(feature = "interop")]
mod foreign;
#[cfg(feature = "interop")]
mod import;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "interop")]
mod numpy;
#[cfg(feature = "interop")]
mod options;
#[cfg(feature = "interop")]
pub mod safetensors;
#[cfg(feature = "interop")]
mod torch;
#[cfg(feature = "interop")]
mod zip;

#[cfg(feature = "interop")]
pub use foreign::{FileFormat, ForeignFile};
#[cfg(feature = "interop")]
pub use import::Imported;
#[cfg(feature = "interop")]
pub use numpy::{Order, npy, npz};
#[cfg(feature = "interop")]
pub use options::ForeignOptions;
