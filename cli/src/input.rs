//! The sources of tensors: a store, or a file in another format.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Access, access};
use stridemap::{
    ErrorKind, Result as LibraryResult, Snapshot, StorageInfo, StorageKind, Store, StoreOptions, Tensor,
    TensorInfo,
};
use stridemap_interop::{FileFormat, ForeignFile, ForeignOptions};

use crate::args::Reading;
use crate::error::{Error, Result};
use crate::history::{check_untagged, snapshot_at, split};
use crate::interrupt;
use crate::names::{Named, command_line, natural, quoted};
use crate::output_file::parent_dir;
use crate::remote::{self, check_local, is_url};
use crate::ui::{counted, message, warn};

/// A source of tensors, opened for reading only.
pub(crate) enum Input {
    /// A store, with a snapshot: of the newest generation when it was opened, or of the one that a tag names. The path is
    /// that of the argument, which may be `STORE@TAG`.
    Store(Store, Snapshot, PathBuf),
    /// A file in another format.
    File(ForeignFile),
}

/// The maximum number of warnings about what cannot be read.
const MAX_SHOWN_UNREADABLE: usize = 10;

/// An iterator over items that are read as it advances, so each can fail.
pub(crate) type Items<'a, T> = Box<dyn Iterator<Item = LibraryResult<T>> + 'a>;

impl Input {
    /// Opens a directory as a store, and a file as a file in another format. Prints the names of what cannot be read.
    pub(crate) fn open(path: &Path, reading: &Reading, options: &StoreOptions) -> Result<Self> {
        let input = Input::open_quietly(path, reading, options)?;
        if let Input::File(file) = &input {
            for left_out in file.skipped().iter().take(MAX_SHOWN_UNREADABLE) {
                warn(&format!("not shown: {}: {}", quoted(&left_out.name), left_out.reason));
            }
            let more = file.skipped().len().saturating_sub(MAX_SHOWN_UNREADABLE);
            if more > 0 {
                warn(&format!("not shown: {more} more of {}, which cannot be read", path.display()));
            }
        }
        Ok(input)
    }

    /// Opens a source, and leaves out what cannot be read. A file in which nothing can be read is refused.
    pub(crate) fn open_quietly(path: &Path, reading: &Reading, options: &StoreOptions) -> Result<Self> {
        if is_url(path) {
            let (store, snapshot) = open_at(options, path)?;
            let mut shown = store.path().as_os_str().to_owned();
            if let Some((_, tag)) = split(path) {
                shown.push(format!("@{tag}"));
            }
            return Ok(Input::Store(store, snapshot, shown.into()));
        }
        if split(path).is_none() {
            check_found(path, "file or store")?;
        }
        match fs::metadata(path) {
            Ok(found) if found.is_file() => {
                let file = reading.options().skip_unreadable(true).open(path)?;
                match file.skipped().first() {
                    Some(left_out) if file.tensors().next().is_none() && file.attributes().is_empty() => {
                        Err(left_out.reason.clone().into())
                    }
                    _ => Ok(Input::File(file)),
                }
            }
            Ok(found) if !found.is_dir() => Err(Error::at("open", path, "not a store or a regular file")),
            _ => {
                let (store, snapshot) = open_at(options, path)?;
                Ok(Input::Store(store, snapshot, path.to_path_buf()))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Input::Store(_, _, path) => path,
            Input::File(file) => file.path(),
        }
    }

    /// Returns how many tensors and values of a file cannot be read. They are left out.
    pub(crate) fn unreadable_count(&self) -> usize {
        match self {
            Input::Store(..) => 0,
            Input::File(file) => file.skipped().len(),
        }
    }

    /// Returns "store", or the name of the file's format.
    pub(crate) fn format(&self) -> &'static str {
        match self {
            Input::Store(..) => "store",
            Input::File(file) => file.format().name(),
        }
    }

    /// Iterates over the headers of the tensors whose names begin with `prefix`, in ascending order of name.
    pub(crate) fn tensors<'a>(&'a self, prefix: &'a str) -> LibraryResult<Items<'a, TensorInfo>> {
        Ok(match self {
            Input::Store(_, snapshot, _) => Box::new(snapshot.iter_tensors(prefix)?),
            Input::File(file) => Box::new(file.tensors_with(prefix).map(Ok)),
        })
    }

    /// Returns the selected headers in natural order of name.
    pub(crate) fn sorted(&self, mut is_selected: impl FnMut(&TensorInfo) -> bool) -> Result<Vec<TensorInfo>> {
        let mut selected = Vec::new();
        for tensor in self.tensors("")? {
            selected.extend(Some(tensor?).filter(&mut is_selected));
        }
        selected.sort_by(|a, b| natural(&a.name, &b.name));
        Ok(selected)
    }

    /// Iterates over the storages in ascending order of id.
    pub(crate) fn storages(&self) -> Items<'_, StorageInfo> {
        match self {
            Input::Store(_, snapshot, _) => Box::new(snapshot.storages()),
            Input::File(file) => Box::new(file.storages().map(Ok)),
        }
    }

    /// Returns all attributes by scope and key. Those of a file belong to `""` or to a tensor.
    pub(crate) fn attributes(&self) -> Cow<'_, BTreeMap<(String, String), String>> {
        match self {
            Input::Store(_, snapshot, _) => Cow::Borrowed(snapshot.all_attributes()),
            Input::File(file) => {
                let texts = file.attributes().iter();
                let texts = texts.map(|(key, value)| ((String::new(), key.clone()), value.clone()));
                let of_tensors = file.tensors().flat_map(|tensor| {
                    let texts = file.attributes_of(&tensor.name).into_iter();
                    texts.map(move |(key, value)| ((tensor.name.clone(), key), value))
                });
                Cow::Owned(texts.chain(of_tensors).collect())
            }
        }
    }

    /// Returns the name of the only tensor. `verb` is the command, for the error if there is none or more than one.
    pub(crate) fn only_name(&self, verb: &str) -> Result<String> {
        let mut names = self.names()?;
        let count = counted(names.len() as u64, "tensor");
        let why = match names.pop() {
            Some(name) if names.is_empty() => return Ok(name),
            Some(_) => format!("it has {count}; name the one to {verb}, as ls prints it"),
            None => "it has no tensors".to_owned(),
        };
        Err(Error::at(verb, self.path(), why))
    }

    /// Returns the tensor of a file that gives it no name: a `.npy` file, or a PyTorch file that holds one bare
    /// tensor. Such a tensor is named after the file.
    pub(crate) fn unnamed_tensor(&self) -> Option<TensorInfo> {
        let Input::File(file) = self else { return None };
        let mut tensors = file.tensors();
        let only = tensors.next().filter(|_| tensors.next().is_none())?;
        let is_unnamed = matches!(file.format(), FileFormat::Npy | FileFormat::PyTorch)
            && file.path().file_stem() == Some(only.name.as_ref());
        is_unnamed.then_some(only)
    }
}

impl Named for Input {
    fn contains(&self, name: &str) -> LibraryResult<bool> {
        match self {
            Input::Store(_, snapshot, _) => snapshot.contains(name),
            Input::File(file) => Ok(file.contains(name)),
        }
    }

    /// Returns the tensor with this name. No element is read.
    fn load(&self, name: &str) -> LibraryResult<Tensor> {
        match self {
            Input::Store(_, snapshot, _) => snapshot.load(name),
            Input::File(file) => file.load(name),
        }
    }

    fn names(&self) -> LibraryResult<Vec<String>> {
        self.tensors("")?.map(|info| Ok(info?.name)).collect()
    }
}

/// Refuses a path where there is nothing, and an empty file. `wanted` is what the path should lead to.
pub(crate) fn check_found(path: &Path, wanted: &str) -> Result<()> {
    check_local(path)?;
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => Err(Error::at("read", path, "the file is empty")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let advice = match path.as_os_str() == "-" {
                true => "; only import and export use - for a pipe".to_owned(),
                false => advice(path),
            };
            Err(Error::at("open", path, format_args!("no such {wanted}{advice}")))
        }
        _ => Ok(()),
    }
}

/// Suggests a path with a name similar to that of one where there is nothing.
fn advice(path: &Path) -> String {
    let is_store = |path: &Path| path.join("FORMAT").is_file();
    let dir = parent_dir(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let similarity = |other: &str| strsim::normalized_damerau_levenshtein(&name, other);
    let others = fs::read_dir(dir).into_iter().flatten().flatten().take(1000);
    let others = others.filter(|other| other.path().is_file() || is_store(&other.path()));
    let near = others.map(|other| other.file_name().to_string_lossy().into_owned());
    let nearest = near.map(|other| (similarity(&other), other)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest.filter(|(similarity, _)| *similarity > 0.6) {
        Some((_, other)) => format!("; did you mean {}?", path.with_file_name(other).display()),
        None => String::new(),
    }
}

/// Opens a store, for a command that is about its newest generation. See [`explain`] for the error.
pub(crate) fn open_store(options: &StoreOptions, path: &Path) -> Result<Store> {
    check_untagged(path)?;
    reporting_waits(options).open(path).map_err(|refused| explain(path, refused))
}

/// Opens a store or a URL to look at its history.
pub(crate) fn open_to_look(options: &StoreOptions, path: &Path) -> Result<Store> {
    if is_url(path) { remote::open_newest(options, path) } else { open_store(options, path) }
}

/// Opens a store or a URL to look at it: at the newest generation, or for `STORE@TAG` or `URL@TAG` at the one that the tag names.
pub(crate) fn open_at(options: &StoreOptions, path: &Path) -> Result<(Store, Snapshot)> {
    if is_url(path) {
        return remote::open(options, path);
    }
    let Some((path, tag)) = split(path) else {
        let store = open_store(options, path)?;
        let snapshot = store.snapshot();
        return Ok((store, snapshot));
    };
    let store = open_store(options, path)?;
    let snapshot = snapshot_at(&store, tag)?;
    Ok((store, snapshot))
}

/// Returns the total length of the storages that are in external files, or of those inside the store.
pub(crate) fn stored_bytes(snapshot: &Snapshot, is_external: bool) -> Result<u64> {
    snapshot.storages().try_fold(0u64, |sum, storage| {
        let storage = storage?;
        let is_counted = (storage.kind == StorageKind::External) == is_external;
        Ok(sum.saturating_add(if is_counted { storage.size_bytes } else { 0 }))
    })
}

/// Refuses a dry run on a store that the command could not change.
pub(crate) fn check_writable(store: &Store) -> Result<()> {
    let path = store.path().join("meta");
    access(&path, Access::WRITE_OK).map_err(|e| {
        Error::Refused(format!("{} cannot be changed: {}: {e}", store.path().display(), path.display()))
    })
}

/// How long a command waits for a lock before it says so.
const SILENT_WAIT: Duration = Duration::from_secs(1);

/// Returns options with which a command says which process it waits for.
pub(crate) fn reporting_waits(options: &StoreOptions) -> StoreOptions {
    options.clone().on_wait(SILENT_WAIT, report_wait)
}

/// Says once which process holds a lock. Ends the command if a signal has arrived.
fn report_wait(processes: &[u32]) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    interrupt::check();
    if IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let holder = match processes.first() {
        None => "another process".to_owned(),
        Some(id) => match fs::read_to_string(format!("/proc/{id}/comm")) {
            Ok(command) => format!("process {id} ({})", command.trim()),
            Err(_) => format!("process {id}"),
        },
    };
    message(&format!("note: waiting for {holder}, which is writing to the store"));
}

/// Adds a suggestion to an error about a store: to import the path if it is a file in another format, or to use a
/// different path if there is nothing at this one.
pub(crate) fn explain(path: &Path, refused: stridemap::Error) -> Error {
    if refused.kind() == ErrorKind::NotAStore
        && fs::metadata(path).is_ok_and(|found| found.is_file())
        && let Ok(file) = ForeignOptions::new().skip_unreadable(true).open(path)
    {
        let import = command_line("import", &[&path.to_string_lossy(), "STORE"]);
        let (path, format) = (path.display(), file.format());
        return Error::Refused(format!(
            "open {path}: a {format} file, not a store; import it first: {import}"
        ));
    }
    match refused.kind() {
        ErrorKind::NotFound => Error::Refused(format!("{refused}{}", advice(path))),
        _ => refused.into(),
    }
}
