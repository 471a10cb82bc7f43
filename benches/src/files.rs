//! Files and stores: opening them, and dropping them from the page cache.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use memmap2::Mmap;
use rustix::fs::Advice;
use stridemap::{Durability, Store, StoreOptions};

use crate::Outcome;

/// Opens a store that only this program writes.
pub(crate) fn open_mapped(path: &Path) -> Outcome<Store> {
    // SAFETY: only stridemap writes the stores of this program.
    Ok(unsafe { Store::open_mapped(path)? })
}

/// Returns options for a store whose commits are not synced.
pub(crate) fn unsynced() -> StoreOptions {
    StoreOptions::new().durability(Durability::Process)
}

/// Maps a file that nothing changes while this program runs.
pub(crate) fn map(path: &Path) -> Outcome<Mmap> {
    // SAFETY: nothing writes the file while it is mapped.
    Ok(unsafe { Mmap::map(&File::open(path)?)? })
}

/// Drops the pages of a file, or of all files in a directory, from the page cache.
pub(crate) fn drop_pages(path: &Path) -> Outcome {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            drop_pages(&entry?.path())?;
        }
        return Ok(());
    }
    let file = File::open(path)?;
    // Pages that are not written yet cannot be dropped.
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Writes a file of zeros, and deletes it.
pub(crate) fn write_and_delete(dir: &Path, bytes: usize) -> Outcome {
    if bytes > 0 {
        let path = dir.join("zeros");
        let (mut file, zeros) = (File::create(&path)?, vec![0; 1 << 20]);
        (0..bytes.div_ceil(zeros.len())).try_for_each(|_| file.write_all(&zeros))?;
        fs::remove_file(path)?;
    }
    Ok(())
}
