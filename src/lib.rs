//! A memory-mapped on-disk tensor store.
//!
//! A [`Store`] is a directory that holds *storages*, flat runs of bytes in files, and a table of named *tensors*. A
//! tensor is a header over one storage: dtype, size, stride and storage offset. This is PyTorch's model of a tensor,
//! kept on disk: saving a slice or a transpose writes another header and copies no element.
//!
//! ```
//! use stridemap::{Store, Tensor};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.smap");
//! let store = Store::create(&path)?;
//! store.save("weight", &Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], &[2, 3])?)?;
//!
//! let weight = store.load("weight")?;
//! store.save_view("weight_t", &weight.t()?)?;
//!
//! let transposed = Store::open(&path)?.load("weight_t")?;
//! assert_eq!((transposed.size(), transposed.stride()), (&[3, 2][..], &[1, 3][..]));
//! assert_eq!(transposed.read::<f32>()?, [1., 4., 2., 5., 3., 6.]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Types
//!
//! - [`Store`]: a handle to a store. It reads one generation at a time, and moves to a newer one by its own commits
//!   and by [`refresh`](Store::refresh). [`StoreOptions`] changes how it is opened.
//! - [`Transaction`]: several changes in one commit. [`Snapshot`]: one generation, which never changes.
//!   [`NameChanges`]: the difference between two snapshots. [`Appender`]: batches of rows for one tensor.
//! - [`TensorInfo`] and [`StorageInfo`]: what a listing returns, without opening a file.
//! - [`Tensor`]: a header over a storage on disk or on the heap. It has views, and its elements can be copied or
//!   borrowed.
//! - [`TypedTensor`]: the elements of a contiguous tensor as a slice. It keeps the tensor alive.
//! - [`SharedGuard`] and [`ExclusiveGuard`]: a lock on a tensor in a mutable storage, to read it, or to change it in
//!   place with an [`Operand`].
//! - [`LiveTensor`]: a tensor on a live storage. Many processes read and write its [elements](LiveElement) at once,
//!   without a lock.
//! - [`Source`]: a value that can be saved: a tensor, a slice, a number, an `ndarray` array. [`Element`]: a Rust type
//!   that corresponds to a [`DType`].
//! - [`Statistics`]: counts, extremes, mean, deviation and distribution of the elements of a tensor.
//! - [`Error`]: has an [`ErrorKind`] to match on and, for damage, the broken [`Rule`] of the format.
//! - [`ExternalFiles`]: the files outside the store that a handle may open.
//! - [`Advice`]: how the elements of a tensor will be accessed, for the kernel.
//! - [`set_num_threads`]: limits the threads of large copies, saves and checks.
//!
//! # Modules
//!
//! - [`history`]: tags, which keep generations; the log; which tags to keep.
//! - [`maintenance`]: disk usage, compaction, copies, verification and salvage.
//! - [`import`]: types for importers of other file formats. The `stridemap-interop` crate imports safetensors, NumPy
//!   and PyTorch files.
//! - [`replica`]: reads a store whose files are not in a file system, and lists what a copy of one needs.
//! - [`small_float`]: element types of 8 bits. [`half`] and [`num_complex`] have other element types.
//!
//! # Guarantees
//!
//! A commit is atomic, and durable when it returns, even after a power cut ([`Durability::Full`]). A reader sees one
//! generation and is not disturbed by writers. Damaged metadata is an error when it is read; damaged elements are
//! found by [`Store::verify`]. The time to open a store, load a tensor or commit a header grows at most with about
//! the square root of the number of tensors, and does not depend on the size of the data.
//!
//! Writers in several processes take turns. [`Store::wait_for_change`] sleeps until a commit by any other handle, in
//! this or another process. A forked child cannot use the handles it inherits.
//!
//! [`Store::open`] is safe whatever other processes do to the files. [`Store::open_mapped`] is unsafe: borrowing the
//! pages of a file is sound only if nothing else writes that file.
//!
//! # Features
//!
//! - `ndarray` (default): converts between tensors and `ndarray` arrays.
//! - `dlpack`: exchanges tensors with other libraries in the same process, by DLPack.
//! - `serde`: `Serialize` for [`TensorInfo`], [`StorageInfo`], [`DType`] and the reports of [`maintenance`].
//! - `simulation`: file operations as a trait, so that tests can simulate crashes. Not covered by semver.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_endian = "little"))]
compile_error!("stridemap borrows elements from the bytes of files, which are little-endian");

mod available_memory;
#[cfg(feature = "simulation")]
pub mod disk;
#[cfg(not(feature = "simulation"))]
#[expect(unreachable_pub, reason = "public with the `simulation` feature")]
mod disk;
mod error;
mod generation;
pub mod history {
    //! The history of a store: tags, the log, and which tags to keep.
    //!
    //! The operations are methods of [`Store`](crate::Store), [`Transaction`](crate::Transaction) and
    //! [`Snapshot`](crate::Snapshot).

    pub use crate::store::{At, LogEntry, Retention, TagInfo};
}
pub mod import;
mod layout;
pub mod maintenance;
#[cfg(doctest)]
mod tests;
// Public for the command line; not covered by semver.
#[doc(hidden)]
pub mod parallel;
mod storage;
mod store;
mod tensor;

pub mod small_float {
    //! Element types of 8 bits, which Rust does not have.
    //!
    //! A value of one of these types holds the bits that encode a number. It converts from and to `f32`, and compares
    //! and displays as that number. Tensors of all dtypes of 8 and 4 bits are saved, viewed and cast like all others;
    //! those without a type here are read after [`Tensor::to_dtype`](crate::Tensor::to_dtype). [`half`] has the 16-bit types.
    //!
    //! ```
    //! use stridemap::small_float::F8E4M3FN;
    //! use stridemap::{DType, Tensor};
    //!
    //! let x = Tensor::from_vec(vec![0.3f32, 1000.], &[2])?.to_dtype(DType::F8E4M3FN)?;
    //! assert_eq!(x.read::<F8E4M3FN>()?, [0.3125, 448.].map(F8E4M3FN::from));
    //! # Ok::<(), stridemap::Error>(())
    //! ```

    pub use crate::tensor::{F8E4M3FN, F8E8M0FNU};
}

pub use half;
#[cfg(feature = "ndarray")]
pub use ndarray;
pub use num_complex;

pub use disk::ExternalFiles;
pub use error::{Error, ErrorKind, Result};
pub use generation::{Durability, NameChanges, OnExisting};
pub use layout::{Axis, Index, Integer, Integers, Sections};
pub use parallel::set_num_threads;
pub use store::replica;
// Public for `stridemap-interop`; not covered by semver.
#[doc(hidden)]
pub use storage::Writeback;
pub use storage::{Advice, StorageKind};
pub use store::{Appender, Snapshot, StorageInfo, Store, StoreOptions, TensorInfo, Transaction};
pub use stridemap_format::{DType, Header, Rule};
// Public for the Python package; not covered by semver.
#[doc(hidden)]
pub use tensor::HeldLock;
pub use tensor::{
    Element, ExclusiveGuard, LiveElement, LiveTensor, Operand, PrintOptions, Scalar, SharedGuard, Source,
    Statistics, Tensor, TypedTensor,
};
