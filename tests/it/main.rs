//! Tests of the library through its public API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

mod attributes;
mod cases;
mod commit;
mod compaction;
mod copies;
mod damage;
mod elements;
mod errors;
mod examples;
mod external;
mod faults;
#[path = "../common/files.rs"]
mod files;
mod filesystems;
mod growth;
mod harness;
mod history;
#[path = "../common/images.rs"]
mod images;
mod live;
mod mutable;
mod python_reader;
#[path = "../common/random.rs"]
mod random;
mod receive;
mod refusals;
mod replica;
mod scale;
mod serialized;
mod sharing;
#[allow(dead_code, unused_imports, reason = "only the crash tests list what can survive a power cut")]
#[path = "../common/simulated/mod.rs"]
mod simulated;
mod stress;
#[path = "../common/support.rs"]
mod support;
mod tutorials;
mod views;
