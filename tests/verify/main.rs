//! `verify` and `repair`: damage to every file of a store, and what is found, and what is left.

mod crash;
mod damage;
mod flips;
mod partial;
mod repairs;
mod support;
