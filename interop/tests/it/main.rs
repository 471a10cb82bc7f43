//! Tests of `stridemap-interop` through its public API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

mod exports;
mod formats;
mod gguf;
#[path = "../../../tests/common/images.rs"]
mod images;
mod numpy;
mod place;
mod python_safetensors;
mod readers;
mod safetensors;
mod shard_index;
mod shards;
mod shared_blocks;
#[path = "../../../tests/common/support.rs"]
#[expect(dead_code, reason = "only some of it is used here")]
mod support;
mod torch;
mod written;
