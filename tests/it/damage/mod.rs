//! `verify` and `salvage`: damage to every file of a store, the findings, and the tensors that are left.

mod files;
mod flips;
mod hostile;
mod interrupted;
mod metadata;
mod partial;
mod salvages;
mod support;
mod tables;
mod unread;
mod verified_reads;
