//! Standard input as a file to import.

use std::fs::File;
use std::io::{self, IsTerminal as _, Seek as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use stridemap_interop::{ForeignFile, ForeignOptions};

use crate::error::{Error, Result};
use crate::output_file::parent_dir;

/// The path that stands for standard input or standard output.
pub(super) const PIPE: &str = "-";

/// The name of standard input in messages, and of a tensor from it that has no name.
const NAME: &str = "stdin";

/// Standard input, from which a file is to be read.
pub(super) struct Piped {
    input: File,
    /// Where the input is copied to, unless it is a regular file that has not been read yet.
    copy: Option<File>,
}

impl Piped {
    /// Opens the input as a file. A pipe is read only as far as its first bytes tell that it is a file of tensors.
    pub(super) fn open(self, options: ForeignOptions) -> stridemap::Result<ForeignFile> {
        match self.copy {
            Some(copy) => options.open_reader(self.input, copy, NAME),
            None => options.open_file(self.input, NAME),
        }
    }
}

/// Returns standard input, if one of the paths is `-`. Unless it is a regular file that has not been read yet, it will
/// be copied to an unnamed temporary file in the directory that contains the store: it may not fit in memory, and `/tmp`
/// may be memory.
pub(super) fn open(paths: &[PathBuf], store: &Path) -> Result<Option<Piped>> {
    let refused = |why: &str| Err(Error::Refused(format!("import -: {why}")));
    match paths.iter().filter(|path| path.as_os_str() == PIPE).count() {
        0 => return Ok(None),
        1 if io::stdin().is_terminal() => {
            return refused("standard input is a terminal; pipe a file into it, or name the file");
        }
        1 => {}
        _ => return refused("standard input can be read only once"),
    }
    let failed = |e: io::Error| Error::Refused(format!("import -: read standard input: {e}"));
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let is_file = input.metadata().is_ok_and(|found| found.is_file());
    if is_file && input.stream_position().map_err(failed)? == 0 {
        return Ok(Some(Piped { input, copy: None }));
    }
    let dir = parent_dir(store);
    let copy = tempfile::tempfile_in(dir).map_err(|e| {
        Error::Refused(format!("import -: create a temporary file in {}: {e}", dir.display()))
    })?;
    Ok(Some(Piped { input, copy: Some(copy) }))
}
