//! The main types of the API: stores, transactions and snapshots.

mod append;
mod appender;
mod attributes;
mod changes;
mod conditions;
mod copy;
mod elements;
mod handle;
mod import;
mod loader;
mod maintain;
mod options;
mod prefix;
mod rows;
mod save_view;
mod snapshot;
mod staging;
mod transaction;
mod verify;
mod watch;
mod write;

pub use appender::Appender;
pub use handle::Store;
pub use import::StorageKey;
pub use options::StoreOptions;
pub use snapshot::{Snapshot, StorageInfo, TensorInfo};
pub use transaction::Transaction;
