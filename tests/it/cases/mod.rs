//! The numbered cases that the project must survive: the table of them; whole stores, good and damaged, that every later version
//! reads or refuses as this one does; and cases that no other test shows whole.

mod outside;
mod places;
mod stores;
mod table;
