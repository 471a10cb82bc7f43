//! Code that the fuzz targets share.

pub mod exercise;
pub mod foreign;
/// Headers and digests around any bytes, from the tests of the format.
#[path = "../../format/tests/support/frame.rs"]
mod frame;
pub mod model;
pub mod packed;
pub mod table;
pub mod wire;
pub mod zip;

use std::path::PathBuf;
use std::{env, fs, io, process};

use peak_alloc::PeakAlloc;
use stridemap::{Source as _, Tensor};
use stridemap_format::digest;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Runs `work`, and checks that it never has more than `limit_bytes` allocated on the heap.
///
/// # Panics
/// If it allocated more.
pub fn within<T>(limit_bytes: usize, work: impl FnOnce() -> T) -> T {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let done = work();
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= limit_bytes, "{taken} bytes of memory; at most {limit_bytes} are allowed");
    done
}

/// Replaces the last sixteen bytes with the digest of the rest.
pub fn fix_digest(bytes: &mut [u8]) {
    if let Some((covered, stated)) = bytes.split_last_chunk_mut::<16>() {
        *stated = digest(covered);
    }
}

/// Returns the number at an offset, or 0 past the end.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |number| u64::from_le_bytes(*number))
}

/// Returns the number at an offset, or 0 past the end.
#[must_use]
pub fn u16_at(bytes: &[u8], offset: usize) -> u32 {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |number| u16::from_le_bytes(*number))
        .into()
}

/// Returns the number at an offset, or 0 past the end.
#[must_use]
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |number| u32::from_le_bytes(*number))
}

/// Returns the sixteen bytes at an offset, or zeros past the end.
pub fn uuid_at(bytes: &[u8], offset: usize) -> [u8; 16] {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

/// Decodes the integer at an offset in the record encoding (SPEC.md, section 3).
pub fn uint_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let rest = bytes.get(offset + 1..)?;
    Some(match *bytes.get(offset)? {
        251 => u16::from_le_bytes(*rest.first_chunk()?).into(),
        252 => u32::from_le_bytes(*rest.first_chunk()?).into(),
        253 => u64::from_le_bytes(*rest.first_chunk()?),
        254.. => return None,
        byte => byte.into(),
    })
}

/// Creates an empty directory for this process, in memory: below `STRIDEMAP_FUZZ_DIR`, or `/dev/shm`.
///
/// # Errors
/// Those of the file system.
pub fn scratch(name: &str) -> io::Result<PathBuf> {
    let root = env::var_os("STRIDEMAP_FUZZ_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let dir = root.join(format!("stridemap-fuzz-{name}-{}", process::id()));
    fs::create_dir(&dir)?;
    Ok(dir)
}

/// Returns the elements of a tensor in row-major order, as bytes.
///
/// # Errors
/// Those of [`stridemap::Source::write_to`].
pub fn elements(tensor: &Tensor) -> stridemap::Result<Vec<u8>> {
    let mut all = Vec::new();
    tensor.write_to(&mut |bytes| {
        all.extend(bytes);
        Ok(())
    })?;
    Ok(all)
}
