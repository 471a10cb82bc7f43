//! What the shell needs: completions and man pages.

mod candidates;
pub(crate) mod completions;
pub(crate) mod man;

pub(crate) use completions::complete;
