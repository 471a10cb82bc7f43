//! File locks: waiting for them, and their order.

pub(in crate::storage) mod lock_queue;
pub(in crate::storage) mod lock_wait;
pub(in crate::storage) mod take;
