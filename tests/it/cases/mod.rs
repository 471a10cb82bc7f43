//! The numbered cases: their table; whole stores, valid and damaged, which every later version must read or refuse as
//! this one does; and cases that no other test covers completely.

mod outside;
mod special_files;
pub(crate) mod stores;
mod table;
