//! crate docs
#![deny(unsafe_code)]

mod commit;
#[cfg(feature = "simulation")]
pub mod disk;
#[cfg(not(feature = "simulation"))]
#[expect(unreachable_pub, reason = "public with the feature `simulation`")]
mod disk;
mod error;
pub mod interop;
mod layout;
mod storage;
mod store;
mod tensor;

pub use commit::{Collected, Durability, Finding, OnExisting};
pub use error::{Error, ErrorKind, Result};
pub use layout::Index;
pub use store::{Snapshot, StorageInfo, StorageKind, Store, StoreOptions, TensorInfo, Transaction};
pub use stridemap_format::{DType, Rule};
pub use tensor::{Element, Scalar, Source, Tensor};
