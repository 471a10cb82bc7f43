//! The main types of the API: stores, transactions and snapshots.

mod append;
mod append_copy;
mod append_rows;
mod appender;
mod at;
mod attributes;
mod copy;
mod handle;
mod history;
mod import;
mod loader;
mod maintain;
mod name_changes;
mod name_prefix;
mod options;
pub mod replica;
mod retention;
mod save_view;
mod snapshot;
mod staging;
mod tag_changes;
mod transaction;
mod transaction_reads;
mod verify;
mod watch;
mod write;
mod write_elements;

pub use appender::Appender;
pub use at::At;
pub use handle::Store;
pub use history::{LogEntry, TagInfo};
pub use import::StorageKey;
pub use options::StoreOptions;
pub use retention::Retention;
pub use snapshot::{Snapshot, StorageInfo, TensorInfo};
pub use transaction::Transaction;
