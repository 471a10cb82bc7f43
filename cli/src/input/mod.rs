//! The sources of tensors: a store, or a file in another format.

mod open;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stridemap::{Result as LibraryResult, Snapshot, StorageInfo, Store, StoreOptions, Tensor, TensorInfo};
use stridemap_interop::{FileFormat, ForeignFile};

use crate::args::Reading;
use crate::at::split;
use crate::error::{Error, Result};
use crate::names::{Named, natural, quoted};
use crate::output_file::parent_dir;
use crate::remote::{check_local, is_url};
use crate::ui::{counted, warn};

pub(crate) use open::{
    check_writable, explain, open_at, open_store, open_to_look, reporting_waits, stored_bytes,
};

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
        // References are much shorter to move than headers.
        let mut order: Vec<(&str, usize)> = selected.iter().map(|info| info.name.as_str()).zip(0..).collect();
        order.sort_by(|(a, _), (b, _)| natural(a, b));
        let order: Vec<usize> = order.into_iter().map(|(_, position)| position).collect();
        let mut selected: Vec<_> = selected.into_iter().map(Some).collect();
        Ok(order.into_iter().filter_map(|position| selected.get_mut(position)?.take()).collect())
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
    // Two names are not similar because both end with .safetensors.
    let stem = |name: &str| name.split_once('.').map_or(name, |(stem, _)| stem).to_owned();
    let likeness = |a: &str, b: &str| strsim::normalized_damerau_levenshtein(a, b);
    let others = fs::read_dir(dir).into_iter().flatten().flatten().take(1000);
    let others = others.filter(|other| other.path().is_file() || is_store(&other.path()));
    let names = others.map(|other| other.file_name().to_string_lossy().into_owned());
    let near = names.filter(|other| likeness(&stem(&name), &stem(other)) > 0.6);
    let nearest = near.map(|other| (likeness(&name, &other), other)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest.filter(|(likeness, _)| *likeness > 0.6) {
        Some((_, other)) => format!("; did you mean {}?", path.with_file_name(other).display()),
        None => String::new(),
    }
}
