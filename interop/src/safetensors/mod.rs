//! The safetensors format: a JSON header, then the elements of the tensors one after another. A large model is
//! several such files, and a JSON index that says which file holds which tensor.
//!
//! The header is read as a stream and checked by the same rules as in the safetensors crate. The crate itself would keep
//! several copies of it. Elements are not kept in memory.

mod dtype;
mod header;
mod index;
mod json;
mod place;
mod read;
mod shards;
mod write;

pub(super) use index::{is_file, is_index, is_length, read as read_index};
pub(super) use read::{header_end_bytes, read, stated_bytes};
pub use write::Export;

/// The header key that does not name a tensor.
const METADATA_KEY: &str = "__metadata__";

/// The number of bytes before the header. They hold its length.
const PREAMBLE_BYTES: usize = 8;

/// The maximum length of a header, which the format sets. It is also the limit here for an index, and for the headers
/// of all shards together.
pub(super) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The format's file names for a model in several files: `model-00001-of-00003.safetensors` and
/// `model.safetensors.index.json`.
const ENDING: &str = ".safetensors";
const INDEX_ENDING: &str = ".safetensors.index.json";

/// The maximum number of shards of a model. Each shard that is read is an open file.
const MAX_SHARDS: usize = 4096;
