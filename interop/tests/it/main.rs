//! Tests of `stridemap-interop` through its public API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod exports;
mod formats;
#[path = "../../../tests/it/images.rs"]
mod images;
mod numpy;
mod place;
mod python_safetensors;
mod safetensors;
mod shard_index;
mod shards;
mod shared_blocks;
#[path = "../../../tests/it/support.rs"]
#[expect(dead_code, reason = "not all of it is used here")]
mod support;
mod torch;
mod written;
