//! Other file formats for [stridemap]: safetensors, NumPy's `.npy` and `.npz`, PyTorch's `.pt` and `.pth`, and GGUF.
//!
//! ```
//! use stridemap::{Store, Tensor};
//! use stridemap_interop::{ForeignFile, safetensors};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let path = dir.join("model.safetensors");
//! let weight = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
//! let tensors = [("weight".to_owned(), weight)];
//! safetensors::Export::new().write(&path, &tensors, |_| ())?;
//!
//! // Read without a store.
//! let file = ForeignFile::open(&path)?;
//! assert_eq!(file.load("weight")?.t()?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
//!
//! // Copy it into a store.
//! let store = Store::create(dir.join("model.smap"))?;
//! stridemap_interop::import(&store, &path, "")?;
//! assert_eq!(store.load("weight")?.size(), [3, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`ForeignFile`] is an open file of any format. Its tensors are read in place. [`ForeignOptions`] opens it with
//!   different settings.
//! - [`import`] copies a file into a store. [`adopt`] leaves the elements in the file. [`ForeignFile::import_into`]
//!   and [`ForeignFile::adopt_into`] do the same within a transaction.
//! - [`safetensors::Export`], [`npy::Export`], [`npz::Export`] and [`gguf::Export`] write files: set options, then call
//!   `write`. `.pt` files can only be read. They are read as data: no code in them is run.
//!
//! `progress` is called with the number of bytes of elements read or written since the last call. [`OnExisting`] sets
//! whether an import may replace tensors and whether an export may replace files. By default, both may.
//!
//! Files are not trusted. Their contents are checked against the length of the file before memory is allocated.
//!
//! [`OnExisting`]: stridemap::OnExisting
#![forbid(unsafe_code)]

mod adopt;
mod budget;
mod contents;
mod fields;
mod file;
mod file_format;
mod foreign;
mod foreign_elements;
mod foreign_options;
mod foreign_storage;
pub mod gguf;
mod import;
mod numpy;
mod persist_new;
pub mod safetensors;
mod spool;
mod torch;
mod zip;

pub use adopt::adopt;
pub use contents::Skipped;
pub use file_format::FileFormat;
pub use foreign::ForeignFile;
pub use foreign_options::ForeignOptions;
pub use import::{Imported, import};
pub use npy::Order;
pub use numpy::{npy, npz};
// Public for the command; not covered by semver.
#[doc(hidden)]
pub use persist_new::persist_new;

/// Tests the Rust examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
