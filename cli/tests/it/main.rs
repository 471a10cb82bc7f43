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
mod gguf;
mod harness;
mod history;
mod import;
mod info;
mod inspect;
mod interrupt;
mod locked;
mod ls;
mod maintain;
mod manners;
mod map;
mod mv;
mod names;
mod numpy;
mod output;
mod pipes;
mod plot;
mod refusals;
mod remote;
mod report;
mod round_trip;
mod salvage;
mod shell;
mod show;
#[path = "../../../tests/common/signals.rs"]
mod signals;
mod sources;
mod space;
mod stats;
mod tree;
mod watch;
