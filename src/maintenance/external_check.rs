//! Checks the external files of a generation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stridemap_format::{External, FileStamp, RecordKind, StorageRecord};

use crate::error::{Error, ErrorKind, Result};
use crate::generation::OpenStore;

/// What is wrong with an external file.
pub(super) struct Fault {
    pub(super) path: PathBuf,
    pub(super) detail: String,
    /// The storages in the file.
    pub(super) ids: Vec<u64>,
}

/// Checks that each file of the external storages exists and is unchanged, if the handle may open it. Returns what is
/// wrong, and the files that the handle may not open, which are not touched.
///
/// # Errors
/// `Io` if a file could not be examined.
pub(super) fn check_external<'a>(
    store: &OpenStore,
    storages: impl Iterator<Item = (u64, &'a StorageRecord)>,
) -> Result<(Vec<Fault>, Vec<PathBuf>)> {
    // Each pair of path and stamp is checked once: records can have different stamps for one path.
    let mut files: BTreeMap<_, (External, Vec<u64>)> = BTreeMap::new();
    for (id, record) in storages {
        let RecordKind::External(external) = &record.kind else { continue };
        let FileStamp { inode, size_bytes, mtime_ns } = external.stamp;
        let stated = (&external.path, (inode, size_bytes, mtime_ns));
        files.entry(stated).or_insert_with(|| (external.clone(), Vec::new())).1.push(id);
    }
    let (mut faults, mut refused) = (Vec::new(), Vec::new());
    for (external, ids) in files.into_values() {
        let path = store.externals.path(&external);
        match store.externals.open(&external) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotAllowed => refused.push(path),
            Err(e) if e.kind() != ErrorKind::ExternalChanged => return Err(e),
            Err(e) => faults.push(Fault { detail: detail_of(&path, &e), path, ids }),
        }
    }
    refused.dedup();
    Ok((faults, refused))
}

/// Returns the message of an error about the file at `path`, without that path.
pub(super) fn detail_of(path: &Path, error: &Error) -> String {
    let message = error.to_string();
    message.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&message).to_owned()
}
