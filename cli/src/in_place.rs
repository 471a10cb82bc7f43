//! Files that stores use in place. A command must not replace such a file: the store has no other copy of its elements.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stridemap::{ErrorKind, Snapshot, StorageKind, Store};
use stridemap_interop::ForeignFile;

use crate::error::{Error, Result};
use crate::input::Input;
use crate::names::{command_line, quoted};
use crate::output_file::parent_dir;
use crate::ui::{counted, message};

/// The maximum number of entries of a directory among which stores are looked for.
const MAX_ENTRIES: usize = 10_000;

/// Says which files outside the store a copy of these tensors of a snapshot needs, as the original does.
pub(crate) fn note_files_of_copy(
    copy: &Path,
    snapshot: &Snapshot,
    is_copied: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut files = BTreeMap::new();
    for storage in snapshot.storages() {
        let storage = storage?;
        if storage.kind == StorageKind::External {
            files.insert(storage.id, storage.file);
        }
    }
    let mut needed = BTreeSet::new();
    if !files.is_empty() {
        for info in snapshot.iter_tensors("")? {
            let info = info?;
            needed.extend(files.get(&info.storage_id).filter(|_| is_copied(&info.name)));
        }
    }
    let Some(first) = needed.first() else { return Ok(()) };
    let more = match needed.len() - 1 {
        0 => String::new(),
        more => format!(" and {}", counted(more as u64, "other")),
    };
    let (compact, copy) = (command_line("compact --materialize", &[&copy.to_string_lossy()]), copy.display());
    message(&format!(
        "note: elements in files that were imported in place are not copied: {copy} needs {}{more}; {compact} copies them",
        first.display()
    ));
    Ok(())
}

/// The files that a command is about to write.
pub(crate) struct Outputs<'a> {
    /// The name of the command, for errors.
    pub(crate) command: &'static str,
    pub(crate) paths: &'a [PathBuf],
    /// The names of the tensors in the files. Empty if the files are not files of tensors.
    pub(crate) names: BTreeSet<&'a str>,
}

impl Outputs<'_> {
    /// Refuses to replace a file from which the command reads, or that a store uses in place: see
    /// [`check_stores`](Self::check_stores).
    pub(crate) fn check(&self, input: &Input) -> Result<()> {
        let file = match input {
            Input::Store(store, snapshot, _) => return self.check_stores(Some((store.path(), snapshot))),
            Input::File(file) => file,
        };
        let parts = file.storages().map(|storage| storage.file);
        let parts: BTreeSet<PathBuf> = parts.chain([file.path().to_path_buf()]).collect();
        match self.replaced().into_iter().find(|path| parts.iter().any(|part| is_same(path, part))) {
            Some(path) => {
                let why = "the tensors are read from this file; write to another path";
                Err(Error::at(self.command, path, why))
            }
            None => self.check_stores(None),
        }
    }

    /// Refuses to replace a file that a store uses in place. `store` is the one from which the command reads. The
    /// stores beside the file, and in every directory above it, are opened too.
    pub(crate) fn check_stores(&self, store: Option<(&Path, &Snapshot)>) -> Result<()> {
        let replaced = self.replaced();
        if replaced.is_empty() {
            return Ok(());
        }
        let own = store.and_then(|(path, _)| fs::canonicalize(path).ok());
        if let Some((path, snapshot)) = store {
            self.check_store(&replaced, path, snapshot)?;
        }
        for path in stores_near(&replaced).into_iter().filter(|path| Some(path) != own.as_ref()) {
            match Store::open(&path) {
                Ok(store) => self.check_store(&replaced, &path, &store.snapshot())?,
                Err(e) => match e.kind() {
                    // No tensor of a damaged store, or of no store, can be read.
                    ErrorKind::NotFound | ErrorKind::NotAStore | ErrorKind::Corrupt => {}
                    _ => {
                        let store = path.display();
                        let why = format!("{store} may use this file in place, but could not be read: {e}");
                        return Err(Error::at(self.command, replaced.first().copied().unwrap_or(&path), why));
                    }
                },
            }
        }
        Ok(())
    }

    /// Returns the paths where something exists.
    fn replaced(&self) -> Vec<&Path> {
        let paths = self.paths.iter().map(PathBuf::as_path);
        paths.filter(|path| path.symlink_metadata().is_ok()).collect()
    }

    fn check_store(&self, replaced: &[&Path], store: &Path, snapshot: &Snapshot) -> Result<()> {
        let mut used = BTreeMap::new();
        for storage in snapshot.storages() {
            let storage = storage?;
            let path = match storage.kind {
                StorageKind::External => replaced.iter().find(|path| describes(path, &storage.file)),
                _ => None,
            };
            used.extend(path.map(|path| (storage.id, *path)));
        }
        if used.is_empty() {
            return Ok(());
        }
        let (mut first, mut count) = (None, 0);
        for tensor in snapshot.iter_tensors("")? {
            let tensor = tensor?;
            if let Some(path) = used.get(&tensor.storage_id) {
                count += 1;
                first.get_or_insert((tensor.name, *path));
            }
        }
        let Some((name, path)) = first else { return Ok(()) };
        let tensors = match count {
            1 => format!("tensor {}", quoted(&name)),
            _ => format!("{} such as {}", counted(count, "tensor"), quoted(&name)),
        };
        let compact = command_line("compact --materialize", &[&store.to_string_lossy()]);
        let (store, lost) = (store.display(), self.lost(path));
        let why = format!(
            "{store} uses this file in place, and {tensors} could no longer be read{lost}; write to another path, or \
             first copy the elements into the store: {compact}"
        );
        Err(Error::at(self.command, path, why))
    }

    /// Says which tensors of the file the new file would not have.
    fn lost(&self, path: &Path) -> String {
        let Ok(file) = ForeignFile::open(path) else { return String::new() };
        let names = file.tensors().map(|tensor| tensor.name);
        let mut lost = names.filter(|name| !self.names.contains(name.as_str()));
        let Some(first) = lost.next() else { return String::new() };
        let tensors = counted(1 + lost.count() as u64, "tensor");
        format!("; the new file would lack {tensors} of the old one, such as {}", quoted(&first))
    }
}

/// Returns whether a path leads to this file, or is the index of a model of which the file is a part.
fn describes(path: &Path, file: &Path) -> bool {
    let is_part = || {
        let index = ForeignFile::open(path).ok()?;
        index.storages().any(|storage| is_same(&storage.file, file)).then_some(())
    };
    is_same(path, file) || path.extension().is_some_and(|ending| ending == "json") && is_part().is_some()
}

/// Returns whether replacing the file at `path` replaces `file`. A command replaces a symbolic link itself, not its
/// target. The inodes are compared too, because a store may have recorded a different hard link of the file.
fn is_same(path: &Path, file: &Path) -> bool {
    let place = |path: &Path| Some(fs::canonicalize(parent_dir(path)).ok()?.join(path.file_name()?));
    let replaced = fs::symlink_metadata(path).ok();
    let used = fs::metadata(file).ok();
    let is_linked = replaced.zip(used).is_some_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino()));
    is_linked || place(path).is_some_and(|it| Some(it) == place(file))
}

/// Returns the stores in the directories of these files, and in the directories above them: a store can use any file
/// below the directory that it is in.
fn stores_near(files: &[&Path]) -> BTreeSet<PathBuf> {
    let dirs: BTreeSet<PathBuf> =
        files.iter().filter_map(|path| fs::canonicalize(parent_dir(path)).ok()).collect();
    let dirs: BTreeSet<&Path> = dirs.iter().flat_map(|dir| dir.ancestors()).collect();
    dirs.into_iter().filter_map(stores_in).flatten().collect()
}

/// Returns the stores in a directory. Another file system is not entered: that could mount it, or wait for a server.
fn stores_in(dir: &Path) -> Option<Vec<PathBuf>> {
    let device = fs::symlink_metadata(dir).ok()?.dev();
    let is_here = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|found| found.dev() == device);
    let entries = fs::read_dir(dir).ok()?.flatten().take(MAX_ENTRIES).filter(is_here);
    Some(entries.map(|entry| entry.path()).filter(|path| path.join("FORMAT").is_file()).collect())
}
