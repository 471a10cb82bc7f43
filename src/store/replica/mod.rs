//! Stores elsewhere: reading one whose files are not in a file system, and listing what a replica needs.
//!
//! A program that keeps the files of a store in some other place, such as an object store, implements [`Files`] and
//! [`FileReader`]. [`StoreOptions::open_files`](crate::StoreOptions::open_files) then opens the store there. The handle
//! reads like any other, with [`Snapshot`](crate::Snapshot), [`Tensor`](crate::Tensor), tags, the log, verification and
//! copies to a path. It stays on the newest generation of the files, or on the one that
//! [`at`](crate::StoreOptions::at) names, and every write fails with [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly).
//!
//! A replica is the same store in another place: it has the same uuid, generations and storages.
//! [`Snapshot::replica_files`](crate::Snapshot::replica_files) lists the files that a replica needs, all or those that
//! changed, and [`Snapshot::open_replica_file`](crate::Snapshot::open_replica_file) opens each.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::io;
//! use std::sync::Arc;
//!
//! use stridemap::replica::{FileReader, Files};
//! use stridemap::{Store, StoreOptions};
//!
//! /// The files of a store in memory, by name.
//! #[derive(Debug)]
//! struct InMemory(BTreeMap<String, Arc<Bytes>>);
//!
//! #[derive(Debug)]
//! struct Bytes(Vec<u8>);
//!
//! impl Files for InMemory {
//!     fn list(&self, dir: &str) -> io::Result<Vec<String>> {
//!         let names = self.0.keys().filter_map(|name| name.strip_prefix(dir)?.strip_prefix('/'));
//!         Ok(names.map(str::to_owned).collect())
//!     }
//!
//!     fn open(&self, name: &str) -> io::Result<Arc<dyn FileReader>> {
//!         let found = self.0.get(name).ok_or(io::ErrorKind::NotFound)?;
//!         Ok(found.clone())
//!     }
//! }
//!
//! impl FileReader for Bytes {
//!     fn size_bytes(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//!
//!     fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
//!         let start = offset_bytes as usize;
//!         buf.copy_from_slice(self.0.get(start..start + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
//!         Ok(())
//!     }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("x.smap");
//! # Store::create(&path)?.save("x", &[1i32, 2, 3])?;
//! let mut files = BTreeMap::new();
//! for name in ["FORMAT", "meta/0000000000000002.man", "storages/0000000000000001.bin"] {
//!     files.insert(name.to_owned(), Arc::new(Bytes(std::fs::read(path.join(name))?)));
//! }
//! let store = StoreOptions::new().open_files(Arc::new(InMemory(files)), "memory:x.smap")?;
//! assert_eq!(store.load("x")?.flip([0])?.read::<i32>()?, [3, 2, 1]);
//! assert!(store.remove("x").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod files;
mod files_disk;
mod id;
mod listing;
mod open_files;
mod receive;
mod stored_file;

pub use crate::generation::GenerationId;
pub use files::{FileReader, Files};
pub(in crate::store) use listing::TaggedGarbage;
pub use listing::{NeededFile, ReplicaFiles};
pub use receive::{ReceiveOptions, Received};
pub use stridemap_format::remote::{FileKey, FileKind};
