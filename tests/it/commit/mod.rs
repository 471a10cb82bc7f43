//! Commits: saving and loading, transactions, conditions, reads, and waiting for other writers.

mod changes;
pub(crate) mod conditions;
mod creation;
pub(crate) mod deletions;
mod opening;
mod prefixes;
pub(crate) mod reads;
mod saving;
mod staged;
mod transactions;
pub(crate) mod waiting;
