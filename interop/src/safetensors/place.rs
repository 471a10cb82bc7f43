//! Renames several files to their final names together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stridemap::{Error, OnExisting, Result};
use tempfile::TempPath;

use crate::file::{create_unfinished, dir_of, not_named, sync_dir};
use crate::persist_new;

/// Renames synced files in one directory to their final names. The last file is the index that names the others. An
/// existing index is moved away first and the new one is placed last, so that an index never refers to another export's
/// files.
///
/// After an error the old files get their names back, unless the file system fails again.
pub(super) fn rename_all(staged: Vec<TempPath>, targets: &[PathBuf], on_existing: OnExisting) -> Result<()> {
    let Some(index) = targets.last() else { return Ok(()) };
    let dir = dir_of(index);
    let sync = || sync_dir(dir);
    let mut changes = Changes { on_existing, done: Vec::new() };
    let place_all = || {
        changes.set_aside(index)?;
        sync()?;
        let last = staged.len().saturating_sub(1);
        for (number, (staged, target)) in staged.into_iter().zip(targets).enumerate() {
            if number == last {
                sync()?;
            } else {
                changes.set_aside(target)?;
            }
            changes.place(staged, target)?;
        }
        sync()
    };
    // Files set aside are kept until everything is durable.
    place_all().inspect_err(|_| changes.undo())
}

struct Changes {
    on_existing: OnExisting,
    done: Vec<Change>,
}

enum Change {
    /// A file was placed under its name.
    Placed(PathBuf),
    /// The existing file was renamed. It is deleted when everything is done.
    SetAside(TempPath, PathBuf),
}

impl Changes {
    /// Moves away an existing file, if it may be replaced.
    fn set_aside(&mut self, target: &Path) -> Result<()> {
        if self.on_existing == OnExisting::Refuse {
            return Ok(());
        }
        let failed = |e| Error::io("export", target, e);
        let aside = create_unfinished(dir_of(target)).map_err(failed)?.into_temp_path();
        match fs::rename(target, &aside) {
            Ok(()) => self.done.push(Change::SetAside(aside, target.to_path_buf())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
        Ok(())
    }

    fn place(&mut self, staged: TempPath, target: &Path) -> Result<()> {
        // If the name exists, another process has created the file since.
        persist_new(staged, target).map_err(|e| not_named(target, e))?;
        self.done.push(Change::Placed(target.to_path_buf()));
        Ok(())
    }

    fn undo(self) {
        for change in self.done.into_iter().rev() {
            // If this fails too, nothing better can be done, and the first error is the one to report.
            match change {
                Change::Placed(target) => drop(fs::remove_file(target)),
                Change::SetAside(aside, target) => drop(aside.persist(target)),
            }
        }
    }
}
