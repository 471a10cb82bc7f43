//! Generations of a store: how the newest is found and pinned, how the next is published, and what a commit deletes.
//!
//! | term | meaning | file |
//! |---|---|---|
//! | attribute | a text that a scope, the store or a tensor, has under a key | `attributes.rs` |
//! | change | what a transaction asks for; kept, so that it can be repeated on a newer generation | `changes.rs` |
//! | collector | deletes files that no generation needs, and counts them | `garbage.rs` |
//! | current generation | the one that a handle shows | `open_store.rs` |
//! | differences | what a later generation of the same store elsewhere has more | `differences.rs`, `tag_differences.rs` |
//! | draft | a generation with changes that are not published yet | `draft.rs` |
//! | garbage | storages without a name, which a tag or a reader of an older generation may still need | `garbage.rs`, `history.rs` |
//! | generation | one committed state of the store: the tensors, the storages and the attributes | `pinned.rs` |
//! | early file | a file of a received generation that has its final name before the commit | `early.rs` |
//! | identity | the number of a generation and the digest of its manifest, the same in each copy of the store | `id.rs` |
//! | in use | an older generation that a process has pinned, and the processes that hold a lock | `in_use.rs` |
//! | incoming | the metadata of a generation of the same store elsewhere | `incoming.rs` |
//! | incomplete store | a store under a name that no process opens, until it is renamed | `incomplete_store.rs` |
//! | manifest | the file of a generation: its changes to a table, or everything | `publish.rs` |
//! | merge | two ascending sequences of entries, side by side | `merge.rs` |
//! | metadata copy | the manifests and tables of a copy of a store with its tags | `metadata_copy.rs` |
//! | newest watch | tells a handle that no name was added to `meta/` since it was listed | `newest_watch.rs` |
//! | newest generation | the one with the highest number on disk | `recover.rs` |
//! | older manifests | those before the newest, and what their readers may need | `older.rs` |
//! | open store | what one handle keeps from one commit to the next | `open_store.rs` |
//! | pin | the shared lock of a manifest, which keeps the files of its generation | `pinned.rs` |
//! | publish | write storages, table and manifest, and rename the manifest: the commit | `publish.rs` |
//! | read | what a transaction looked up, which must be the same in the generation that it changes | `reads.rs` |
//! | receive | the commit that makes a later generation of the same store elsewhere the newest | `receive.rs` |
//! | relocation | the tensors of a storage, moved to a smaller copy of it | `relocate.rs` |
//! | replay | a draft, applied to the newest generation under the writers' lock | `replay.rs` |
//! | restore | returns names to their headers in an earlier generation, and takes storages back from the garbage | `replay.rs`, `history.rs` |
//! | store directory | the directory of a store, and its files of known names | `store_dir.rs`, `open_dirs.rs`, `new_store.rs` |
//! | table | the file of all tensors and storages at one generation, in pages | `table.rs`, `table_nodes.rs` |
//! | tag | a name for a generation, which keeps it | `history.rs` |
//! | transfer | counts what is read from another store | `transfer.rs` |
//! | unsynced | the mark of a store that has commits without a sync | `unsynced.rs` |
//! | watch | waits until names are added to `meta/`; one idle watch is kept | `kept_watch.rs` |
//! | writers' lock | the exclusive lock of `LOCK`, by which writers take turns | `writer_lock.rs` |

mod attributes;
mod changes;
mod create;
mod differences;
mod draft;
mod early;
mod entries;
mod garbage;
mod history;
mod id;
mod in_use;
mod incoming;
mod incomplete_store;
pub(crate) mod kept_watch;
mod merge;
mod metadata_copy;
mod name_changes;
mod new_store;
mod newest_watch;
mod older;
mod open_dirs;
mod open_store;
mod pinned;
mod publish;
mod reads;
mod receive;
mod recover;
mod relocate;
mod replay;
mod store_dir;
mod table;
mod table_nodes;
mod tag_differences;
mod transfer;
pub(crate) mod unsynced;
mod writer_lock;

pub(crate) use attributes::attributes_of;
pub use changes::OnExisting;
pub(crate) use changes::{Change, Changes, Tagged};
pub(crate) use create::{create, is_empty_dir};
pub(crate) use differences::{Differences, Need, Wanted, differences};
pub(crate) use draft::Draft;
pub(crate) use early::EarlyFiles;
pub(crate) use entries::{Entries, GarbageEntry, KeptEntry, StorageEntry, TagEntry, TensorEntry};
pub use garbage::Collected;
pub(crate) use garbage::{Collector, is_table_of, with_space};
pub(crate) use history::is_kept;
pub use id::GenerationId;
pub(crate) use in_use::{GenerationInUse, by_processes, generations_in_use, holders, writers_of};
pub(crate) use incoming::{Incoming, MetadataFetch};
pub(crate) use incomplete_store::{IncompleteStore, Unfilled, check_free, not_created};
pub(crate) use metadata_copy::MetadataCopy;
pub use name_changes::NameChanges;
pub(crate) use name_changes::changes_between;
pub(crate) use open_dirs::{check_store, is_own_dir, open_dirs, read_format};
pub use open_store::Durability;
pub(crate) use open_store::{OpenStore, Options};
pub(crate) use pinned::{Generation, Pin};
pub(crate) use publish::publish;
pub(crate) use reads::Read;
pub(crate) use receive::publish_received;
pub(crate) use recover::{
    generation_stated_in, kept_numbers, list, manifest_numbers, newest_has_storage, pin, pin_kept,
    pinned_bytes, reread, uuid_stated_in,
};
pub(crate) use relocate::{Moved, Relocation};
pub(crate) use replay::{check_ids_left, storage_gone};
pub(crate) use store_dir::StoreDir;
pub(crate) use table::{Table, wrong_first_key, wrong_order};
pub(crate) use transfer::Transfer;
pub(crate) use unsynced::{settle_name, settle_sent};
pub(crate) use writer_lock::WriterLock;
