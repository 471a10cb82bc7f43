//! The commands that look at stores and files, and change nothing.

pub(crate) mod info;
pub(crate) mod ls;
mod modules;
pub(crate) mod show;
mod summary;
mod tables;
pub(crate) mod tree;

pub(crate) use info::InfoArgs;
pub(crate) use ls::LsArgs;
pub(crate) use show::ShowArgs;
pub(crate) use tables::format_dim_names;
pub(crate) use tree::TreeArgs;
