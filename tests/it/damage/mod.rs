//! `verify` and `repair`: damage to every file of a store, the findings, and the tensors that are left.

mod files;
mod flips;
mod hostile;
mod interrupted;
mod metadata;
mod partial;
mod repairs;
mod support;
mod tables;
mod unread;
