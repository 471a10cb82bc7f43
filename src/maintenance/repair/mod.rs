//! Repair: makes a damaged store usable again, without guessing.
//!
//! Everything that can be verified is published as a new generation. Until the manifest of that generation is
//! published, no tensor or storage changes; from then on, the store is whole. Files are moved away only when no
//! generation needs them. A repair that was interrupted can be run again, and then has less to do.

mod apply;
mod content;
mod copy;
mod metadata;
mod plan;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{Error as FormatError, Rule};

use crate::disk::{Disk, read_again};
use crate::error::{Error, Result, one_line};
use crate::generation::{Options, open_dirs};

/// What a repair does, or did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Repair {
    /// What is repaired, in order.
    pub remedies: Vec<Remedy>,
    /// What is lost.
    pub losses: Vec<Loss>,
    /// The generation that was published. `None` if only FORMAT, LOCK or chunk digests were written again, or nothing
    /// was done.
    pub generation: Option<u64>,
    /// The removed or replaced files, which are now in `lost+found`. Nothing deletes them.
    pub moved_files: Vec<PathBuf>,
}

impl Repair {
    /// Whether there is nothing to repair.
    ///
    /// ```
    /// # use stridemap::{Store, StoreOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// assert!(StoreOptions::new().plan_repair(store.path(), |_| ())?.is_empty());
    /// std::fs::remove_file(store.path().join("LOCK"))?;
    /// assert!(!StoreOptions::new().plan_repair(store.path(), |_| ())?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remedies.is_empty() && self.losses.is_empty()
    }

    fn remedy(&mut self, path: impl Into<PathBuf>, detail: impl Into<String>) {
        self.remedies.push(Remedy { path: path.into(), detail: detail.into() });
    }

    /// Adds a loss for each file that cannot be read, with the reason and the consequence `then`.
    fn lose_files(&mut self, files: Vec<(PathBuf, String)>, then: &str) {
        let loss = |(path, why)| Loss { path, reason: format!("{why}; {then}"), names: Vec::new() };
        self.losses.extend(files.into_iter().map(loss));
    }
}

/// One thing that is repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remedy {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it, and what is done about it.
    pub detail: String,
}

/// Something that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The damaged file.
    pub path: PathBuf,
    /// Why it is lost.
    pub reason: String,
    /// The names of the lost tensors, in ascending order. Empty if they are not known, or if something else is lost.
    pub names: Vec<String>,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&format!("{}: {}", self.path.display(), self.detail)))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { path, reason, names } = self;
        let listed: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let what = if listed.is_empty() { String::new() } else { format!("; lost: {}", listed.join(", ")) };
        f.write_str(&one_line(&format!("{}: {reason}{what}", path.display())))
    }
}

/// Returns an error's message without the path before it.
fn detail_of(error: &Error) -> String {
    error
        .format_error()
        .map_or_else(|| error.to_string(), |broken| format!("{} ({})", broken.detail(), broken.rule()))
}

/// Plans the repair of a store, and changes nothing.
pub(crate) fn plan_repair(
    disk: &Arc<dyn Disk>,
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Repair> {
    let (disk, paths) = open_dirs(disk, path)?;
    Ok(plan::plan(&*disk, &paths, progress)?.repair)
}

pub(crate) fn repair(
    disk: &Arc<dyn Disk>,
    path: &Path,
    options: Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Repair> {
    let (disk, paths) = open_dirs(disk, path)?;
    apply::apply(&disk, &paths, options, progress)
}

/// The advice if `meta` or `storages` is not a directory.
const PUT_BACK_ADVICE: &str = "put the directory back";

/// Whether a directory exists.
///
/// # Errors
/// `Corrupt` for anything else, such as a link: it could lead anywhere, and files would be written and moved there.
fn has_dir(disk: &dyn Disk, dir: &Path, what_to_do: &str) -> Result<bool> {
    match read_again(|| disk.is_dir(dir)) {
        Ok(true) => Ok(true),
        Ok(false) => {
            let detail = format!("a link or a file, not a directory of its own; {what_to_do}");
            Err(Error::corrupt(dir, FormatError::new(Rule::StorageFile, detail)))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("examine", dir, e)),
    }
}
