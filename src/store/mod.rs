//! The main types of the API: stores, transactions and snapshots.

mod append;
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
mod save_view;
mod snapshot;
mod staging;
mod stats;
mod transaction;
mod verify;
mod watch;
mod write;

pub use copy::Copied;
pub use handle::Store;
pub use import::StorageKey;
pub use options::StoreOptions;
pub use snapshot::{Snapshot, StorageInfo, StorageKind, TensorInfo};
pub use stats::{Stats, StorageStats};
pub use transaction::Transaction;
