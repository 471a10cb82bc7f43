//! Generations of a store: how the newest is found and pinned, how the next is published, and what a commit deletes.

mod attributes;
mod create;
mod garbage;
mod in_use;
mod incomplete_store;
pub(crate) mod kept_watch;
mod name_changes;
mod open_store;
mod pinned;
mod publish;
mod reads;
mod recover;
mod relocate;
mod replay;
mod store_dir;
mod table;
mod table_nodes;
mod transaction_changes;
pub(crate) mod unsynced;
mod writer_lock;

pub(crate) use attributes::attributes_of;
pub(crate) use create::{check_store, create, is_empty_dir, is_own_dir, open_dirs, read_format};
pub use garbage::Collected;
pub(crate) use garbage::Collector;
pub(crate) use in_use::{GenerationInUse, by_processes, generations_in_use, holders, writers_of};
pub(crate) use incomplete_store::{IncompleteStore, Unfilled, check_free, not_created};
pub use name_changes::NameChanges;
pub(crate) use name_changes::changes_between;
pub use open_store::Durability;
pub(crate) use open_store::{OpenStore, Options};
pub(crate) use pinned::{Generation, Pin};
pub(crate) use publish::publish;
pub(crate) use reads::Read;
pub(crate) use recover::{
    list, manifest_numbers, newest_has_storage, pin, pinned_bytes, reread, uuid_stated_in,
};
pub(crate) use relocate::{Moved, Relocation};
pub(crate) use replay::{check_ids_left, storage_gone};
pub(crate) use store_dir::StoreDir;
pub(crate) use table::{Table, wrong_first_key, wrong_order};
pub use transaction_changes::OnExisting;
pub(crate) use transaction_changes::{Change, Changes, Draft};
pub(crate) use unsynced::settle_name;
pub(crate) use writer_lock::WriterLock;
