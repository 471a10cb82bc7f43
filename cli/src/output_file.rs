//! A file that a command writes completely or not at all, such as a page or an image.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use rustix::fs::{Access, access};
use stridemap_interop::persist_new;

use crate::error::{Error, Result};
use crate::in_place::Outputs;
use crate::input::Input;
use crate::remote::check_local;

/// The path of a file to write, after it has been checked.
#[derive(Clone, Copy)]
pub(crate) struct OutputFile<'a> {
    pub(crate) path: &'a Path,
    /// The name of the command, for errors.
    command: &'static str,
    is_forced: bool,
    /// Whether there is a file that will be replaced.
    pub(crate) exists: bool,
}

impl<'a> OutputFile<'a> {
    /// Checks the path and its parent directory. The path must have one of `extensions`. An existing file is
    /// refused unless `is_forced`.
    pub(crate) fn new(
        command: &'static str,
        path: &'a Path,
        extensions: &[&str],
        is_forced: bool,
    ) -> Result<Self> {
        // Another extension is likely a mistake, and --force would replace a file of tensors.
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        if !extensions.iter().any(|&known| extension == known) {
            let known = extensions.join(" or .");
            let why = format!("the name of the file must end with .{known}");
            return Err(Error::at(command, path, why));
        }
        check_parent_dir(command, path)?;
        let exists = check_replaceable(command, path, is_forced)?;
        Ok(OutputFile { path, command, is_forced, exists })
    }

    /// Refuses to replace a file from which the command reads, or that a store uses in place.
    pub(crate) fn check_unused(self, input: &Input) -> Result<()> {
        let paths = [self.path.to_path_buf()];
        Outputs { command: self.command, paths: &paths, names: BTreeSet::new() }.check(input)
    }

    /// Writes the file under a temporary name, and renames it when it is complete. Returns its length.
    pub(crate) fn write(self, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> Result<u64> {
        let dir = parent_dir(self.path);
        let prefix = format!(".{}-", self.command);
        let write = || {
            let staged =
                tempfile::Builder::new().prefix(&prefix).make_in(dir, |path| File::create_new(path))?;
            let mut writer = BufWriter::new(staged.as_file());
            fill(&mut writer)?;
            writer.flush()?;
            drop(writer);
            let size_bytes = staged.as_file().metadata()?.len();
            let staged = staged.into_temp_path();
            match self.is_forced {
                true => staged.persist(self.path).map_err(|e| e.error)?,
                false => persist_new(staged, self.path)?,
            }
            Ok(size_bytes)
        };
        write().map_err(|e: io::Error| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::at(self.command, self.path, EXISTS),
            _ => Error::at(self.command, self.path, e),
        })
    }
}

/// Refuses to replace a file unless `is_forced`. Always refuses a path that is not a file. Returns whether the file
/// exists.
pub(crate) fn check_replaceable(command: &str, path: &Path, is_forced: bool) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            Err(Error::at(command, path, "the path exists and is not a regular file"))
        }
        Ok(_) if !is_forced => Err(Error::at(command, path, EXISTS)),
        found => Ok(found.is_ok()),
    }
}

/// Refuses a URL, and a path in a directory that does not exist, cannot be written, or belongs to a store.
pub(crate) fn check_parent_dir(command: &str, path: &Path) -> Result<()> {
    check_local(path)?;
    let refused = |why| Err(Error::at(command, path, why));
    let dir = parent_dir(path);
    if !dir.exists() {
        return refused(format!("the directory {} does not exist", dir.display()));
    }
    if let Err(e) = access(dir, Access::WRITE_OK | Access::EXEC_OK) {
        return refused(format!("the directory {} cannot be written: {e}", dir.display()));
    }
    let is_store = |dir: &Path| ["FORMAT", "meta", "storages"].iter().all(|name| dir.join(name).exists());
    let canonical = fs::canonicalize(dir).unwrap_or_default();
    match canonical.ancestors().take(2).find(|dir| is_store(dir)) {
        Some(_) => refused("this path is inside a store; choose a path outside".to_owned()),
        None => Ok(()),
    }
}

/// Returns the directory of a path that need not exist.
pub(crate) fn parent_dir(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

const EXISTS: &str = "the file exists; --force replaces it";
