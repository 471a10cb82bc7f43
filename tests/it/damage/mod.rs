//! `verify` and `repair`: damage to every file of a store, and what is found, and what is left.

mod files;
mod flips;
mod hostile;
mod interrupted;
mod metadata;
mod partial;
mod repairs;
mod support;
