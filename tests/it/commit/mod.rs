//! Commits: saving and loading, transactions, conditions, and waiting for other writers.

mod changes;
pub(crate) mod conditions;
mod creation;
mod prefixes;
mod saving;
mod staged;
mod transactions;
pub(crate) mod waiting;
