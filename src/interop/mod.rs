//! From and to what others use.

#[cfg(any(feature = "npy", feature = "safetensors"))]
mod file;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "npy")]
pub mod npy;
#[cfg(feature = "safetensors")]
pub mod safetensors;
