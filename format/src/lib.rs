//! The bytes of a stridemap store.
//!
//! This crate decodes untrusted bytes into typed records, and encodes them. It opens no files, reads no clock, and has
//! no `unsafe` code. `SPEC.md`, next to `src`, defines the bytes in numbered rules: F-1, F-2, and so on. Every
//! [`Error`] names the [`Rule`] that was broken.
//!
//! | type | file in a store |
//! |---|---|
//! | [`Marker`] | `FORMAT` |
//! | [`Manifest`] | `meta/<generation>.man`, and `generations/<generation>.man` of a tagged generation |
//! | [`Node`], [`TableEncoder`] | `generations/<generation>.tab`, and `meta/<generation>.his` of the history |
//! | [`StorageRecord`], [`TensorRecord`] with its [`Header`] | records inside manifests and tables |
//!
//! The module [`remote`] has the objects of a store in object storage, which `REMOTE.md` defines in rules, and
//! so on.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "sizes, strides and offsets have 64 bits on disk, and those of a `Header` are `usize` and `isize`"
);

mod checksum;
mod codec;
mod dims;
mod dtype;
mod entry;
mod error;
mod extent;
mod header;
mod hints;
mod history;
pub mod limits;
mod manifest;
mod marker;
mod node;
mod preamble;
mod record;
pub mod remote;
mod sealed;
mod table;

pub use checksum::{CHUNK_BYTES, Digest, Digester, digest, digests_of_chunks, full_chunk_count};
pub use dims::Dims;
pub use dtype::DType;
pub use entry::{Bounds, Entry, Tree};
pub use error::{Error, Result, Rule};
pub use extent::{Extent, check_numel};
pub use header::Header;
pub use history::{GarbageKey, KeptGeneration, KeptKey, Tag};
pub use manifest::{Attributes, Manifest, ManifestHead, attribute_size, check_attributes};
pub use marker::Marker;
pub use node::{Node, NodeHeader, PAGE_BYTES};
pub use preamble::VERSION;
pub use record::{External, FileStamp, RecordKind, StorageRecord, TensorRecord, check_text};
pub use sealed::{ChunkChain, Sealed, Sealer};
pub use table::{TableEncoder, TableRef, TreeRef};

/// The identity of a store: 16 random bytes, chosen when the store is created.
pub type Uuid = [u8; 16];
