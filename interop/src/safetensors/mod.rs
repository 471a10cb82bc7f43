//! Files of the safetensors format: a JSON header, then the elements of its tensors one after another. Large models are
//! several such files, and an index in JSON that says which tensor is in which.
//!
//! The header is judged by the safetensors crate; elements never pass through it, so memory stays bounded.

mod dtype;
mod header;
mod index;
mod json;
mod place;
mod read;
mod shards;
mod write;

pub(super) use index::{is_file, is_index, read as read_index};
pub(super) use read::read;
pub use write::{WriteOptions, write};

/// The key of the header that is no tensor.
const METADATA_KEY: &str = "__metadata__";

/// The bytes before the header: its length.
const PREAMBLE_BYTES: usize = 8;

/// The format's own cap on its header; the cap here on an index, and on the headers of all parts together.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The format's own names of the files of a model that are several: `model-00001-of-00003.safetensors`, and
/// `model.safetensors.index.json`.
const ENDING: &str = ".safetensors";
const INDEX_ENDING: &str = ".safetensors.index.json";

/// How many parts a model may have: each that is read is an open file.
const MAX_PARTS: usize = 4096;
