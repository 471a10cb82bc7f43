//! What the shell needs: completions and man pages.

mod candidates;
mod completions;
pub(crate) mod generate;
mod man;
mod mistaken;
mod words;

pub(crate) use completions::complete;
pub(crate) use mistaken::order_hint;
pub(crate) use words::parse;
