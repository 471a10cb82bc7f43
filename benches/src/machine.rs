//! The machine that the measures are from.

use std::path::Path;

use crate::Outcome;

/// Fails if the directory is in memory, where files are faster than on any disk.
pub(crate) fn check_disk(dir: &Path) -> Outcome {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let kind = rustix::fs::statfs(dir)?.f_type as u64;
    if [TMPFS, RAMFS].contains(&kind) {
        return Err(
            format!("{} is in memory, not on a disk: choose another with --dir", dir.display()).into()
        );
    }
    Ok(())
}
