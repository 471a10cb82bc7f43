//! The objects of a remote: the files of a store, cut into objects that never change.
//!
//! `REMOTE.md`, next to `src`, defines the bytes. A reader takes these steps:
//!
//! 1. Get `FORMAT` and decode the [`Marker`](crate::Marker). Get `HEAD` and decode the [`Head`].
//! 2. Get the object [`Head::manifest_path`], check its length and its BLAKE3 digest, and decode the [`RemoteManifest`].
//!    The bytes of the store's own manifest are inside.
//! 3. To read a file of the store, look for the page of its [`FileKey`] with [`RemoteManifest::page_of`], decode the page
//!    with [`RemoteManifest::decode_page`], and get the [`Segment`]s of the file.
//!
//! Nothing here computes a BLAKE3 digest: who gets an object checks it.

mod head;
mod key;
mod manifest;
mod names;
mod page;
mod segment;

pub use head::Head;
pub use key::{FileKey, FileKind};
pub use manifest::{Previous, RemoteManifest};
pub use names::{
    ObjectName, manifest_from_path, manifest_path, object_from_hex, object_from_path, object_hex, object_path,
};
pub use page::{Entries, PAGE_TARGET_BYTES, Page, Place, decode_page, encode_page, encode_pages};
pub use segment::{BLOCK_BYTES, BLOCK_DIGEST_BYTES, Segment, digests_length_bytes, total_bytes};
