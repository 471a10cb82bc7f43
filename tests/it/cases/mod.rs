//! Whole stores, valid and damaged, which every later version must read or refuse as this one does; files that change
//! under an open store; and names and files that look like something else.

mod outside;
mod special_files;
pub(crate) mod stores;
