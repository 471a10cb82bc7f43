//! Files that get their names together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stridemap::{Error, OnExisting, Result};
use tempfile::TempPath;

use crate::file::{create_unfinished, dir_of, sync_dir, taken};

/// Gives synced files in one directory their names. The last of them says which the others are: the one that has its name
/// goes first, and it comes last, so that it is never over files that are not its own.
///
/// After an error all that had a name has it again, as far as the file system still does what it is told.
pub(super) fn together(staged: Vec<TempPath>, targets: &[PathBuf], on_existing: OnExisting) -> Result<()> {
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
    // What was set aside is there until all of it is durable.
    place_all().inspect_err(|_| changes.undo())
}

struct Changes {
    on_existing: OnExisting,
    done: Vec<Change>,
}

enum Change {
    /// A file got its name.
    Placed(PathBuf),
    /// What had the name has another until all is done; then it goes.
    SetAside(TempPath, PathBuf),
}

impl Changes {
    /// Takes the name from what has it, if that may be replaced.
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
        // The name was free a moment ago: who took it was faster.
        staged.persist_noclobber(target).map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists => taken(target),
            _ => Error::io("export", target, e.error),
        })?;
        self.done.push(Change::Placed(target.to_path_buf()));
        Ok(())
    }

    fn undo(self) {
        for change in self.done.into_iter().rev() {
            // There is nothing better to do when this fails as well, and the first error is the one to be told.
            match change {
                Change::Placed(target) => drop(fs::remove_file(target)),
                Change::SetAside(aside, target) => drop(aside.persist(target)),
            }
        }
    }
}
