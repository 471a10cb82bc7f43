//! Generations of a store: how the newest is found and pinned, how the next is published, and what a commit deletes.

mod attributes;
mod building;
mod changes;
mod create;
mod garbage;
pub(crate) mod idle_watch;
mod in_use;
mod nodes;
mod open_store;
mod pinned;
mod publish;
mod rebase;
mod recover;
mod relocate;
mod table;
pub(crate) mod unsynced;
mod writer_lock;

pub(crate) use attributes::attributes_of;
pub(crate) use building::{Building, Unfilled};
pub use changes::NameChanges;
pub(crate) use changes::changes_between;
pub(crate) use create::{check_store, create, is_empty_dir, open_dirs, read_format};
pub use garbage::Collected;
pub(crate) use garbage::OlderManifests;
pub(crate) use in_use::{GenerationInUse, by_processes, generations_in_use, held_by, holders, writers_of};
pub use open_store::Durability;
pub(crate) use open_store::{OpenStore, Options};
pub(crate) use pinned::{Generation, not_found};
pub(crate) use publish::{publish, publish_manifest};
pub use rebase::OnExisting;
pub(crate) use rebase::{Change, Changes, Draft, check_ids_left, storage_gone};
pub(crate) use recover::{list, manifest_numbers, newest_for_certain, newest_has_storage, pin, reread};
pub(crate) use relocate::{Moved, Relocation};
pub(crate) use table::{Table, wrong_first_key, wrong_order};
pub(crate) use unsynced::settle_name;
pub(crate) use writer_lock::WriterLock;
