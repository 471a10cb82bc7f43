//! Checks the external files of a generation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use stridemap_format::{External, FileStamp};

use crate::error::ErrorKind;
use crate::generation::History;
use crate::storage::Externals;

/// How many tensor names are listed per file.
const MOST_NAMES: usize = 1000;

/// The path and stamp of an external file in a record. Records can have different stamps for one path.
type Stated = (String, (u64, u64, u64, i64));

/// The files of external storages as they were when adopted, each listed once.
#[derive(Debug, Default)]
pub(super) struct ExternalCheck {
    files: BTreeMap<Stated, (FileStamp, Names)>,
    /// By storage id.
    stated: BTreeMap<u64, Stated>,
}

/// The first few names, and the number of the others.
#[derive(Debug, Default)]
struct Names {
    first: Vec<Arc<str>>,
    more: u64,
}

/// The defect of a file.
pub(super) struct Fault {
    pub(super) path: PathBuf,
    pub(super) detail: String,
    /// The first tensors on it. `more` is the number of others.
    pub(super) names: Vec<Arc<str>>,
    pub(super) more: u64,
}

impl ExternalCheck {
    pub(super) fn add_storage(&mut self, id: u64, external: &External) {
        let FileStamp { device, inode, size_bytes, mtime_ns } = external.stamp;
        let stated = (external.path.clone(), (device, inode, size_bytes, mtime_ns));
        self.files.entry(stated.clone()).or_insert_with(|| (external.stamp, Names::default()));
        self.stated.insert(id, stated);
    }

    pub(super) fn add_tensor(&mut self, storage_id: u64, name: &Arc<str>) {
        let stated = self.stated.get(&storage_id);
        if let Some((_, names)) = stated.and_then(|stated| self.files.get_mut(stated)) {
            match names.first.len() < MOST_NAMES {
                true => names.first.push(Arc::clone(name)),
                false => names.more += 1,
            }
        }
    }

    /// Checks that each file that the handle may open exists and is unchanged. Returns what is wrong, and the files
    /// that the handle may not open, which are not touched.
    pub(super) fn check(&self, history: &History) -> (Vec<Fault>, Vec<PathBuf>) {
        let externals = Externals::new(&history.disk, history.paths.root(), history.options.externals);
        let (mut faults, mut refused) = (Vec::new(), Vec::new());
        for ((path, _), (stamp, names)) in &self.files {
            let external = External { path: path.clone(), offset_bytes: 0, stamp: *stamp };
            let path = externals.path(&external);
            match externals.open(&external) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::ExternalRefused => refused.push(path),
                Err(e) => {
                    let error = e.to_string();
                    let detail = error.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&error);
                    let Names { first, more } = names;
                    faults.push(Fault { detail: detail.to_owned(), path, names: first.clone(), more: *more });
                }
            }
        }
        refused.dedup();
        (faults, refused)
    }
}
