//! Generations of a store: how the newest is found and pinned, how the next is published, what goes when none needs it.

mod changes;
mod collect;
mod compact;
mod create;
mod generation;
mod history;
mod lock;
mod names;
mod publish;
mod rebase;
mod recover;
mod relocate;
mod standing;
mod stats;
mod table;
mod unsynced;
mod verify;

pub use changes::NameChanges;
pub(crate) use changes::changes_between;
pub use collect::Collected;
pub(crate) use collect::collect_all;
pub use compact::{Compacted, SkipReason, Skipped};
pub(crate) use compact::{by, compact};
pub(crate) use create::{create, read_marker};
pub(crate) use generation::Generation;
pub use history::Durability;
pub(crate) use history::{History, Options};
pub(crate) use names::not_found;
pub(crate) use publish::publish;
pub use rebase::OnExisting;
pub(crate) use rebase::{Change, Changes, Draft, check_ids_left};
pub(crate) use recover::newest_has_storage;
pub(crate) use standing::{Standing, Worth, each_standing, worth};
pub(crate) use stats::{Pin, holders, pins, unfinished_by};
pub use verify::Finding;
pub(crate) use verify::verify;
