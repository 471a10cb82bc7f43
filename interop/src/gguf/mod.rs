//! The GGUF format of llama.cpp: metadata, then the headers of tensors, then their elements.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use stridemap::{Store, Tensor};
//! use stridemap_interop::gguf;
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! // One block of 32 elements of the type Q4_0 has 18 bytes.
//! let blocks = [("blk.0.weight".to_owned(), Tensor::from_vec(vec![7u8; 2 * 18], &[2, 18])?)];
//! let types = BTreeMap::from([("blk.0.weight".to_owned(), "Q4_0".to_owned())]);
//! gguf::Export::new().types(&types).write(dir.join("model.gguf"), &blocks, |_| ())?;
//!
//! let store = Store::create(dir.join("model.smap"))?;
//! stridemap_interop::import(&store, dir.join("model.gguf"), "")?;
//! assert_eq!(store.load("blk.0.weight")?.size(), [2, 18]);
//! assert_eq!(store.attributes("blk.0.weight")[gguf::TYPE_KEY], "Q4_0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A tensor of floats or signed integers has the dtype and the size that it has in the `gguf` package of Python. The
//! blocks of a quantized tensor are bytes: its last dimension is the number of bytes of a row. The attribute
//! [`TYPE_KEY`] of such a tensor names its type.
//!
//! Metadata are attributes: a text as it is, and a number, a bool or a short array as JSON after `json:`. An array of
//! more than 1024 values is a tensor of bytes, and [`TYPE_KEY`] names the type of the array, such as `[string]`.

mod entry;
mod limits;
mod metadata;
mod model;
mod read;
mod reader;
#[cfg(test)]
mod tests;
mod types;
mod value;
mod write;

pub use crate::contents::TYPE_KEY;
pub(crate) use read::read;
pub use write::Export;

/// What comes before the key of an attribute in the key of another one, which names the type of its value. Only types that
/// do not follow from the value are named.
const VALUE_TYPE_PREFIX: &str = "gguf.type:";

pub(crate) const MAGIC: &[u8] = b"GGUF";

/// The version that is written.
const VERSION: u32 = 3;

/// The key of the alignment of tensors, and the alignment without it.
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
