//! Reading with verification.

pub(in crate::storage) mod chunk_checks;
pub(in crate::storage) mod rewrite;
pub(in crate::storage) mod verified_reader;
