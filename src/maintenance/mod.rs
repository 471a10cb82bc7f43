//! Maintenance of a store: disk usage, garbage collection, compaction, copies, verification and salvage.
//!
//! This module has the types of the reports. The operations are methods of [`Store`], [`Snapshot`] and
//! [`StoreOptions`].
//!
//! A store needs little maintenance, because each commit deletes the files that it makes unneeded. Other processes
//! can read and write the store during all operations.
//!
//! | to | call | which returns |
//! |---|---|---|
//! | see which bytes no tensor reaches, and why they are still on disk | [`Store::disk_usage`] | [`DiskUsage`] |
//! | see what a tag keeps, and what its removal would free | [`Store::log`], [`Store::freed_without`] | [`LogEntry`], bytes |
//! | delete what a killed writer or a power cut left behind | [`Store::gc`] | [`Collected`] |
//! | rewrite storages without the bytes that no tensor reaches | [`Store::compact`] | [`Compacted`] |
//! | copy the elements of external files into the store | [`Store::materialize`] | [`Compacted`] |
//! | copy tensors to another store | [`Transaction::copy_from`] | [`Copied`] |
//! | back up a store that others write | [`Snapshot::copy_to`], [`Store::copy_with_tags`] | [`Copied`] |
//! | find damage, also to what tags keep | [`Store::verify`], [`StoreOptions::verify`] | [`Verification`] |
//! | copy what is whole in a damaged store | [`StoreOptions::salvage`] | [`Salvaged`] |
//!
//! A long-running program should call [`Store::refresh`] now and then, because a handle keeps the files of its
//! generation. A tag keeps them until it is removed: [`Store::retain`] removes old ones. Compaction frees space after
//! large tensors were removed and only views of them remain, unless a tag keeps their storages. A salvage copies
//! one generation, without tags. Verification reads every byte: run it at night, or before a backup replaces an older one.
//!
//! ```
//! use stridemap::Store;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("x.smap");
//! let store = Store::create(&path)?;
//! store.save("all", &vec![1f32; 100_000])?;
//! store.save_view("first", &store.load("all")?.narrow(0, 0, 1000)?)?;
//! store.remove("all")?;
//!
//! for file in store.disk_usage()?.spare {
//!     println!("{}: {} bytes: {}", file.path.display(), file.spare_bytes, file.reason);
//! }
//! let compacted = store.compact(false, |_| ())?;
//! assert_eq!((compacted.before_bytes, compacted.after_bytes), (400_000, 4_000));
//!
//! let verified = store.verify(|_| ())?;
//! assert!(verified.is_whole(), "{:?}", verified.findings);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Snapshot`]: crate::Snapshot
//! [`Snapshot::copy_to`]: crate::Snapshot::copy_to
//! [`Store`]: crate::Store
//! [`Store::compact`]: crate::Store::compact
//! [`Store::copy_with_tags`]: crate::Store::copy_with_tags
//! [`Store::gc`]: crate::Store::gc
//! [`Store::materialize`]: crate::Store::materialize
//! [`LogEntry`]: crate::history::LogEntry
//! [`Store::freed_without`]: crate::Store::freed_without
//! [`Store::log`]: crate::Store::log
//! [`Store::refresh`]: crate::Store::refresh
//! [`Store::retain`]: crate::Store::retain
//! [`Store::disk_usage`]: crate::Store::disk_usage
//! [`Store::verify`]: crate::Store::verify
//! [`StoreOptions`]: crate::StoreOptions
//! [`Transaction::copy_from`]: crate::Transaction::copy_from
//! [`StoreOptions::salvage`]: crate::StoreOptions::salvage
//! [`StoreOptions::verify`]: crate::StoreOptions::verify

mod collect;
mod compact;
mod copy;
mod copy_into;
mod copy_storage;
mod copy_tags;
mod external_check;
mod fetch;
mod inventory;
mod materialize;
mod needs;
mod receive;
mod rewrite;
mod rewrite_candidates;
mod rewriting;
mod salvage;
mod storage_tensors;
mod tagged;
mod usage;
mod verify;

pub use crate::generation::Collected;
pub(crate) use collect::collect_all;
pub(crate) use compact::{compact, plan as plan_compact};
pub use copy::Copied;
pub(crate) use copy::Original;
pub use inventory::{SpaceReason, SpareFile};
pub(crate) use materialize::{materialize, plan as plan_materialize};
pub(crate) use receive::Receiving;
pub use rewrite::{Compacted, SkipReason, Skipped};
pub(crate) use salvage::salvage;
pub use salvage::{Loss, Salvaged};
pub(crate) use storage_tensors::RewriteGain;
pub(crate) use tagged::TaggedGenerations;
pub use usage::DiskUsage;
pub(crate) use usage::usage;
pub use verify::{Finding, Verification};
pub(crate) use verify::{verify, verify_path, verify_tensors};
