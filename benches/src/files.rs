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

/// Drops the pages of a file, or of all files in a directory, from the page cache, and checks that none is left.
///
/// # Errors
/// Fails if a page stays in the page cache, for example because something maps it.
pub(crate) fn drop_pages_for_sure(path: &Path) -> Outcome {
    drop_pages(path)?;
    if is_cold(path)? { Ok(()) } else { Err(format!("{} stays in the page cache", path.display()).into()) }
}

/// Returns whether no page of a file, or of the files in a directory, is in the page cache.
fn is_cold(path: &Path) -> Outcome<bool> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            if !is_cold(&entry?.path())? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if fs::metadata(path)?.len() == 0 {
        return Ok(true);
    }
    let map = map(path)?;
    let mut pages = vec![0u8; map.len().div_ceil(rustix::param::page_size())];
    // SAFETY: the call reads no byte of the mapping, and writes one byte per page.
    let asked = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    if asked != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(pages.iter().all(|page| page & 1 == 0))
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
