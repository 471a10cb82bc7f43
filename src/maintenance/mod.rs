//! Maintenance of a store: which files are needed, garbage collection, compaction, verification and repair.

mod candidates;
mod collect;
mod compact;
mod external_check;
mod inventory;
mod materialize;
mod repair;
mod rewrite;
mod storage_tensors;
mod verify;

pub(crate) use collect::collect_all;
pub(crate) use compact::compact;
pub(crate) use inventory::{Inventory, ListedFile};
pub use inventory::{Reclaimable, SpaceReason};
pub use materialize::Materialized;
pub(crate) use materialize::materialize;
pub use repair::{Loss, Remedy, Repair};
pub(crate) use repair::{plan_repair, repair};
pub use rewrite::{Compacted, SkipReason, Skipped};
pub(crate) use storage_tensors::{StorageTensors, Worth, each_storage, worth};
pub use verify::{Affected, Finding, Orphan, Verification};
pub(crate) use verify::{verify, verify_path, verify_tensors};
