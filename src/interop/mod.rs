//! From and to what others use.

#[cfg(feature = "ndarray")]
mod ndarray;
