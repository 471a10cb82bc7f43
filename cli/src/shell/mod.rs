//! What the shell needs: completions and man pages.

mod candidates;
pub(crate) mod completions;
pub(crate) mod man;
mod mistaken;

pub(crate) use completions::complete;
pub(crate) use mistaken::explain;
