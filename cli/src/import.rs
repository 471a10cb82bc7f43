//! `import`: files of other formats into a store, in one commit.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use indicatif::HumanBytes;
use stridemap::interop::npy::NpyFile;
use stridemap::interop::safetensors::SafetensorsFile;
use stridemap::{ErrorKind, Store, Transaction};
use tempfile::TempDir;

use crate::args::ImportArgs;
use crate::error::{Error, Result};
use crate::output::{counted, message, progress};

const NPY_MAGIC: &[u8] = b"\x93NUMPY";

pub(crate) fn run(args: &ImportArgs) -> Result<()> {
    // All headers are valid before a store is created or an element is copied.
    let inputs: Vec<Input<'_>> = args.files.iter().map(|path| Input::open(path)).collect::<Result<_>>()?;
    let tensor_count = check_names(&inputs)?;
    let attributes = merge_metadata(&inputs);
    let size_bytes = inputs.iter().map(Input::size_bytes).fold(0, u64::saturating_add);

    let target = Target::open(&args.store)?;
    let mut txn = target.store().begin()?;
    txn.on_existing(args.existing.policy());
    let bar = progress("import", size_bytes);
    for input in &inputs {
        input.save(&mut txn, &args.prefix, &mut |bytes| bar.inc(bytes))?;
    }
    for (key, (_, value)) in attributes {
        txn.set_attribute(key, value);
    }
    let generation = txn.commit()?;
    target.finish()?;
    bar.finish_and_clear();
    message(&format!(
        "imported {}, {}, into {}: generation {generation}",
        counted(tensor_count, "tensor"),
        HumanBytes(size_bytes),
        args.store.display()
    ));
    Ok(())
}

/// The store to import into.
enum Target<'a> {
    Existing(Store),
    /// Built beside its place, which it takes once everything is in it: a failed import leaves no store behind.
    New(Store, TempDir, &'a Path),
}

impl<'a> Target<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        match Store::open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let dir = tempfile::Builder::new().prefix(".stage-import-").tempdir_in(dir_of(path));
                let dir = dir.map_err(|e| cannot_create(path, e))?;
                Ok(Target::New(Store::create(dir.path())?, dir, path))
            }
            opened => Ok(Target::Existing(opened?)),
        }
    }

    fn store(&self) -> &Store {
        match self {
            Target::Existing(store) | Target::New(store, ..) => store,
        }
    }

    fn finish(self) -> Result<()> {
        if let Target::New(_, dir, path) = self {
            fs::rename(dir.path(), path).map_err(|e| cannot_create(path, e))?;
            // There is nothing left to delete.
            let _ = dir.keep();
            File::open(dir_of(path)).and_then(|dir| dir.sync_all()).map_err(|e| cannot_create(path, e))?;
        }
        Ok(())
    }
}

fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn cannot_create(path: &Path, e: io::Error) -> Error {
    Error::Refused(format!("create {}: {e}", path.display()))
}

struct Input<'a> {
    path: &'a Path,
    file: Kind<'a>,
}

enum Kind<'a> {
    Safetensors(SafetensorsFile),
    Npy(&'a str, NpyFile),
}

impl<'a> Input<'a> {
    /// Opens a file of the kind that its first bytes say.
    fn open(path: &'a Path) -> Result<Self> {
        let file = if is_npy(path)? {
            let stem = path.file_stem().and_then(OsStr::to_str);
            let stem =
                stem.ok_or_else(|| refused(path, "the name is to be the tensor's, and is not UTF-8"))?;
            Kind::Npy(stem, NpyFile::open(path)?)
        } else {
            Kind::Safetensors(SafetensorsFile::open(path)?)
        };
        Ok(Input { path, file })
    }

    fn names(&self) -> Vec<&str> {
        match &self.file {
            Kind::Safetensors(file) => file.names().collect(),
            Kind::Npy(name, _) => vec![name],
        }
    }

    fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        let metadata = match &self.file {
            Kind::Safetensors(file) => Some(file.metadata()),
            Kind::Npy(..) => None,
        };
        metadata.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    fn size_bytes(&self) -> u64 {
        match &self.file {
            Kind::Safetensors(file) => file.size_bytes(),
            Kind::Npy(_, file) => file.size_bytes(),
        }
    }

    fn save(
        &self,
        txn: &mut Transaction<'_>,
        prefix: &str,
        progress: &mut dyn FnMut(u64),
    ) -> stridemap::Result<()> {
        match &self.file {
            Kind::Safetensors(file) => file.save(txn, prefix, progress),
            Kind::Npy(name, file) => file.save(txn, &format!("{prefix}{name}"), progress),
        }
    }
}

fn refused(path: &Path, why: impl Display) -> Error {
    Error::Refused(format!("import {}: {why}", path.display()))
}

fn is_npy(path: &Path) -> Result<bool> {
    // Opening a pipe could wait for ever.
    if !path.metadata().map_err(|e| refused(path, e))?.is_file() {
        return Err(refused(path, "it is not a file"));
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(NPY_MAGIC.len() as u64).read_to_end(&mut head));
    read.map_err(|e| refused(path, e))?;
    Ok(head == NPY_MAGIC)
}

/// Counts the tensors; one file's must not silently take the place of another's.
fn check_names(inputs: &[Input<'_>]) -> Result<u64> {
    let mut owners = BTreeMap::new();
    for input in inputs {
        for name in input.names() {
            if let Some(other) = owners.insert(name, input.path) {
                return Err(Error::Refused(format!(
                    "import: {} and {} both have a tensor {name:?}; import them one by one, with --prefix",
                    other.display(),
                    input.path.display()
                )));
            }
        }
    }
    Ok(owners.len() as u64)
}

/// What the files say of themselves, and which file said it. Where two disagree the last is right, and that is noted.
fn merge_metadata<'a>(inputs: &'a [Input<'_>]) -> BTreeMap<&'a str, (&'a Path, &'a str)> {
    let mut merged: BTreeMap<&str, (&Path, &str)> = BTreeMap::new();
    for input in inputs {
        for (key, value) in input.metadata() {
            let earlier = merged.insert(key, (input.path, value));
            if let Some((other, _)) = earlier.filter(|&(_, earlier)| earlier != value) {
                message(&format!(
                    "note: {} and {} disagree on {key:?}; the last wins",
                    other.display(),
                    input.path.display()
                ));
            }
        }
    }
    merged
}
