//! Names of tensors.

mod escape;

pub(crate) use escape::{one_line, quoted};
