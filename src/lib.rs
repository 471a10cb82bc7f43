//! A memory-mapped on-disk tensor store.
//!
//! A [`Store`] is a directory. In it are *storages*, flat runs of bytes in files, and a table of named *tensors*, each a
//! header over one storage: dtype, size, stride, storage offset. It is PyTorch's model of a tensor, kept on disk: a
//! slice or a transpose is saved as another header, and no element is copied.
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
//! - [`Store`]: a handle on a store, on one generation of it. [`StoreOptions`] opens it otherwise than by default.
//! - [`Transaction`]: many changes, one commit. [`Snapshot`]: one generation, for good, and the [`NameChanges`] from one
//!   to another.
//! - [`Tensor`]: a header over a storage, on disk or on the heap; its views, and its elements, copied or borrowed.
//! - [`TypedTensor`]: a slice of the elements of a tensor that owns what it borrows from.
//! - [`SharedGuard`] and [`ExclusiveGuard`]: a tensor on a mutable storage under a lock, to be read and to be changed in
//!   place, by an [`Operand`].
//! - [`LiveTensor`]: a tensor on a live storage, read and written by many processes at once, [element](LiveElement) by
//!   element, without a lock.
//! - [`Source`]: what can be saved: a tensor, a slice, a number, an `ndarray` array. [`Element`]: a Rust type that is a [`DType`];
//!   [`F8E4M3FN`] and its kin are the 8-bit floats.
//! - [`Copied`]: a [copy](Snapshot::copy_to) of a store that others may be writing.
//! - [`Stats`], [`Collected`] and [`Compacted`]: where the space of a store is, and what was given back.
//! - [`Error`], with an [`ErrorKind`] to decide by, and for damage the [`Rule`] of the format that was broken.
//! - [`ExternalFile`], [`Layout`] and [`StorageKey`]: what an importer of another format builds on. The crate
//!   `stridemap-interop` does for safetensors, NumPy and PyTorch. [`ExternalFiles`] says which files a handle may open that are
//!   not the store's.
//!
//! # What is promised, and what is not
//!
//! A commit is whole or not at all, and durable when it returns, power cuts included ([`Durability::Full`]). A reader
//! sees one generation and is not disturbed by writers. Damaged metadata is an error when it is read; damaged elements
//! are found by [`Store::verify`]. Opening, loading and committing a header cost about the square root of the number of
//! tensors at most, and nothing for the size of the data.
//!
//! Writers in several processes queue, and [`Store::wait_for_change`] sleeps until one has committed. What a forked child
//! inherits is refused there.
//!
//! [`Store::open`] is safe whatever other processes do to the files. [`Store::open_mapped`] is unsafe, because borrowing
//! the pages of a file is a promise about those who write it.
//!
//! # Features
//!
//! - `ndarray` (default): tensors from and to `ndarray` arrays.
//! - `dlpack`: tensors from and to other libraries of the process, by DLPack.
//! - `simulation`: the file operations as a trait, and a disk that loses power, for crash tests. Not covered by semver.
#![deny(unsafe_code)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("stridemap maps files of any size, and so needs 64-bit addresses");

#[cfg(not(target_endian = "little"))]
compile_error!("stridemap lends the bytes of files as elements, and these are little-endian");

#[cfg(feature = "simulation")]
pub mod disk;
#[cfg(not(feature = "simulation"))]
#[expect(unreachable_pub, reason = "public with the feature `simulation`")]
mod disk;
mod error;
mod generation;
mod layout;
mod maintenance;
mod memory;
mod process;
// For the command line too; not covered by semver.
#[doc(hidden)]
pub mod parallel;
mod storage;
mod store;
mod tensor;

pub use half;
#[cfg(feature = "ndarray")]
pub use ndarray;
pub use num_complex;

pub use error::{Error, ErrorKind, Result};
pub use generation::{Collected, Durability, NameChanges, OnExisting};
pub use layout::{Axes, Axis, Index, Integer, Integers, Layout, Sections, SliceBound};
pub use maintenance::{
    Affected, Compacted, Finding, Loss, Materialized, Orphan, Reclaimable, Remedy, Repair, SkipReason,
    Skipped, SpaceReason, Verification,
};
pub use storage::{ExternalFile, ExternalFiles};
pub use store::{
    Copied, Snapshot, Stats, StorageInfo, StorageKey, StorageKind, StorageStats, Store, StoreOptions,
    TensorInfo, Transaction,
};
pub use stridemap_format::{DType, Rule};
pub use tensor::{
    Element, ExclusiveGuard, F4E2M1FNx2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, LiveElement,
    LiveTensor, Operand, Scalar, SharedGuard, Source, Tensor, TypedTensor,
};

/// The Rust of the README and of the guide, as tests.
#[cfg(all(doctest, feature = "ndarray", feature = "dlpack"))]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../docs/cli.md")]
    mod cli {}
    #[doc = include_str!("../docs/views.md")]
    mod views {}
    #[doc = include_str!("../docs/mutable-and-live.md")]
    mod mutable_and_live {}
    #[doc = include_str!("../docs/growing.md")]
    mod growing {}
    #[doc = include_str!("../docs/file-formats.md")]
    mod file_formats {}
    #[doc = include_str!("../docs/external-files.md")]
    mod external_files {}
    #[doc = include_str!("../docs/disk-space.md")]
    mod disk_space {}
    #[doc = include_str!("../docs/damage-and-repair.md")]
    mod damage_and_repair {}
    #[doc = include_str!("../docs/guarantees.md")]
    mod guarantees {}
}
