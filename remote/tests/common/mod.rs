//! Servers for tests.

pub(crate) mod azurite;
pub(crate) mod moto;
