//! The real executable on stores that the library created.
#![allow(clippy::unwrap_used, reason = "test helpers assert too")]

mod append;
mod attributes;
mod closed_pipe;
mod diff;
mod diff_values;
mod documents;
mod existing;
mod expr;
mod external;
mod files;
mod harness;
mod info;
mod inspect;
mod ls;
mod maintain;
mod names;
mod numpy;
mod output;
mod refusals;
mod repair;
mod round_trip;
mod show;
mod sources;
mod space;
mod tree;
mod watch;
