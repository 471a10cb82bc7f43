//! Stores of [stridemap] in object storage: S3, Google Cloud Storage, Azure, HTTP, and directories.
//!
//! A *remote* is a store whose files are cut into immutable objects. [`Remote::push`] makes the newest generation of a
//! local store that of the remote, [`Remote::pull`] does the reverse, and [`Remote::follow`] pulls whenever the remote
//! changes. [`Remote::store`] reads a remote in place, by ranges. `format/REMOTE.md` defines the objects.
//!
//! A remote and the stores that were pulled from it are the same store: they have the same uuid, and the same generations
//! under the same numbers. One of them at a time makes the next generation. If two do, the first push wins, and the other
//! one gets a [`Conflict`](stridemap::ErrorKind::Conflict).
//!
//! | URL | service |
//! |---|---|
//! | `s3://bucket/path` | Amazon S3, and services that speak its protocol (`AWS_ENDPOINT_URL`) |
//! | `gs://bucket/path` | Google Cloud Storage |
//! | `az://container/path` | Azure Blob Storage |
//! | `http://host/path`, `https://host/path` | any web server with ranges; for reading only |
//! | `file:///path` | a directory, for example of a network file system |
//! | `memory://name/path` | memory of this process, for tests |
#![forbid(unsafe_code)]

mod blocks;
mod chain;
mod client;
mod conflict;
mod digests;
mod ended;
mod fetch;
mod files;
mod follow;
mod index;
mod object_reader;
mod packing;
mod packs;
mod pieces;
mod progress;
mod prune;
mod pull;
mod push;
mod put_object;
mod record;
mod remote;
mod runs;
mod upload;

pub use client::Requests;
// Public for tests; not covered by semver.
#[cfg(feature = "simulation")]
pub use client::faults;
#[doc(hidden)]
pub use client::{Check, Client, Object, ObjectInfo, Put, Version};
#[doc(hidden)]
pub use conflict::WAYS_OUT;
pub use follow::Followed;
pub use progress::{Done, Progress};
pub use prune::{PruneOptions, Pruned};
pub use pull::Pulled;
pub use push::Pushed;
#[doc(hidden)]
pub use record::recorded_remotes;
pub use remote::{Remote, RemoteOptions};

/// Returns the error of an object that breaks a rule.
pub(crate) fn broken(location: &str, name: &str, broken: stridemap_format::Error) -> stridemap::Error {
    stridemap::Error::corrupt(std::path::Path::new(&format!("{location}/{name}")), broken)
}

/// Returns the error of an object whose bytes are not those that its name states.
pub(crate) fn wrong_bytes(location: &str, name: &str) -> stridemap::Error {
    let detail = "the bytes are not those that the name of the object states";
    let rule = stridemap_format::Rule::ObjectDigest;
    broken(location, name, stridemap_format::Error::new(rule, detail))
}
