//! Files of NumPy.

pub mod npy;
