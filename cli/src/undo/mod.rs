//! What a change removes or replaces: the bytes that it frees, which tags keep it, and how to get it back.

mod before;
pub(crate) mod freed;
mod left_behind;
mod recovery;

pub(crate) use before::Before;
pub(crate) use recovery::{Replaced, kept_by_tags, newest_tag_with};
