//! Where tensors come from: a store, or a file of another format.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use stridemap::interop::{FileFormat, ForeignFile};
use stridemap::{
    ErrorKind, Result as LibraryResult, Snapshot, StorageInfo, Store, StoreOptions, Tensor, TensorInfo,
};

use crate::args::Reading;
use crate::error::{Error, Result};

/// What is read, and never written.
pub(crate) enum Source {
    /// A store, as it was when it was opened.
    Store(Store, Snapshot),
    /// A file, and the headers in it by ascending name.
    File(ForeignFile, Vec<TensorInfo>),
}

/// Items, each of which may turn out to be damaged.
pub(crate) type Items<'a, T> = Box<dyn Iterator<Item = LibraryResult<T>> + 'a>;

impl Source {
    /// Opens what is there, and tells by what it is: a directory is a store, a file is one of another format.
    pub(crate) fn open(path: &Path, reading: &Reading, options: &StoreOptions) -> Result<Self> {
        let refused = |why: String| Err(Error::Refused(why));
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Ok(Source::of(reading.options().open(path)?)),
            Ok(found) if !found.is_dir() => {
                refused(format!("open {}: not a store or a regular file", path.display()))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                refused(format!("open {}: no such file or store", path.display()))
            }
            _ => {
                let store = open_store(options, path)?;
                let snapshot = store.snapshot();
                Ok(Source::Store(store, snapshot))
            }
        }
    }

    fn of(file: ForeignFile) -> Self {
        let mut infos: Vec<TensorInfo> = file.tensors().collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Source::File(file, infos)
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Source::Store(store, _) => store.path(),
            Source::File(file, _) => file.path(),
        }
    }

    /// `store`, or the format of the file.
    pub(crate) fn format(&self) -> &'static str {
        match self {
            Source::Store(..) => "store",
            Source::File(file, _) => file.format().name(),
        }
    }

    /// The headers of the tensors whose name begins with `prefix`, by ascending name.
    pub(crate) fn tensors<'a>(&'a self, prefix: &'a str) -> LibraryResult<Items<'a, TensorInfo>> {
        Ok(match self {
            Source::Store(_, snapshot) => Box::new(snapshot.tensors(prefix)?),
            Source::File(_, infos) => {
                let first = infos.partition_point(|info| info.name.as_str() < prefix);
                let infos = infos.iter().skip(first).take_while(move |info| info.name.starts_with(prefix));
                Box::new(infos.cloned().map(Ok))
            }
        })
    }

    /// The storages, by ascending id.
    pub(crate) fn storages(&self) -> Items<'_, StorageInfo> {
        match self {
            Source::Store(_, snapshot) => Box::new(snapshot.storages()),
            Source::File(file, _) => Box::new(file.storages().map(Ok)),
        }
    }

    pub(crate) fn attributes(&self) -> &BTreeMap<String, String> {
        match self {
            Source::Store(_, snapshot) => snapshot.attributes(),
            Source::File(file, _) => file.attributes(),
        }
    }

    /// The tensor of a name. No element is read.
    pub(crate) fn load(&self, name: &str) -> LibraryResult<Tensor> {
        match self {
            Source::Store(_, snapshot) => snapshot.load(name),
            Source::File(file, _) => file.load(name),
        }
    }

    /// The tensor of a file that holds one without a name, which is called after the file.
    pub(crate) fn unnamed(&self) -> Option<&TensorInfo> {
        match self {
            Source::File(file, _) if !matches!(file.format(), FileFormat::Npy | FileFormat::PyTorch) => None,
            Source::File(file, infos) => match infos.as_slice() {
                [info] if file.path().file_stem() == Some(info.name.as_ref()) => Some(info),
                _ => None,
            },
            Source::Store(..) => None,
        }
    }
}

/// Opens a store. A file of another format is not one, and what to do about it is said.
pub(crate) fn open_store(options: &StoreOptions, path: &Path) -> Result<Store> {
    options.open(path).map_err(|refused| explained(path, refused))
}

/// Why the path is no store, when a file is there that could become one.
pub(crate) fn explained(path: &Path, refused: stridemap::Error) -> Error {
    if refused.kind() == ErrorKind::NotAStore
        && fs::metadata(path).is_ok_and(|found| found.is_file())
        && let Ok(file) = ForeignFile::open(path)
    {
        let (path, format) = (path.display(), file.format());
        return Error::Refused(format!(
            "open {path}: a {format} file, not a store; import it first: stridemap import {path} STORE"
        ));
    }
    refused.into()
}
