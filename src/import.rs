//! Types for importers of other file formats.
//!
//! An importer writes the bytes of a storage once, and saves any number of headers over it:
//!
//! 1. [`Transaction::check_name`] checks each name before anything is written.
//! 2. [`Transaction::stage`] writes a storage. [`Transaction::stage_shared`] shares the blocks of a file instead, if
//!    the file system can do that. [`Transaction::adopt`] refers to a range of an [`ExternalFile`], and copies
//!    nothing. [`Transaction::stage_file`] takes a [`StagedFile`], which several processes have filled. Each returns a
//!    [`StorageKey`].
//! 3. [`Transaction::save_header`] saves a tensor over that storage, with a [`Header`](crate::Header).
//! 4. [`Transaction::commit`] makes all of them visible at once.
//!
//! [`Tensor::from_file`] reads a tensor from a file without a store. The `stridemap-interop` crate uses these
//! functions to import safetensors, NumPy and PyTorch files.
//!
//! ```
//! use stridemap::{DType, Header, Store};
//!
//! # let dir = tempfile::tempdir()?;
//! let store = Store::create(dir.path().join("x.smap"))?;
//! let matrix = Header::contiguous(DType::U8, &[2, 2])?;
//! let column = Header::new(DType::U8, [2], [2], 1)?;
//! store.write(|txn| {
//!     let storage = txn.stage(Some(4), |sink| sink(&[1, 2, 3, 4]))?;
//!     txn.save_header("matrix", &matrix, storage)?;
//!     txn.save_header("column", &column, storage)
//! })?;
//! assert_eq!(store.load("column")?.read::<u8>()?, [2, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Tensor::from_file`]: crate::Tensor::from_file
//! [`Transaction::adopt`]: crate::Transaction::adopt
//! [`Transaction::check_name`]: crate::Transaction::check_name
//! [`Transaction::commit`]: crate::Transaction::commit
//! [`Transaction::save_header`]: crate::Transaction::save_header
//! [`Transaction::stage`]: crate::Transaction::stage
//! [`Transaction::stage_file`]: crate::Transaction::stage_file
//! [`Transaction::stage_shared`]: crate::Transaction::stage_shared

pub use crate::storage::ExternalFile;
pub use crate::store::{StagedFile, StorageKey};
