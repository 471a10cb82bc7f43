//! The commands that look at stores and files, and change nothing.

pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod show;

pub(crate) use inspect::InspectArgs;
pub(crate) use ls::LsArgs;
pub(crate) use show::ShowArgs;
