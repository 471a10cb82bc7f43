//! `import`: files of other formats into a store, in one commit.

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::HumanBytes;
use stridemap::interop::{ForeignFile, ForeignOptions};
use stridemap::{ErrorKind, OnExisting, Store};
use stridemap_format::{check_attributes, check_name};

use crate::args::ImportArgs;
use crate::error::{Error, Result};
use crate::output::{counted, message, progress};

pub(crate) fn run(args: &ImportArgs) -> Result<()> {
    // Whatever the files may be refused for is known before a store is created: that one stays, whatever comes, because
    // others may be in it by then.
    let (target, files) = match args.paths.split_last() {
        Some((target, files)) if !files.is_empty() => (target, files),
        _ => {
            return Err(Error::Refused(
                "import: the store is missing\nUsage: stridemap import [OPTIONS] <FILE>... <STORE>"
                    .to_owned(),
            ));
        }
    };
    let mut options = ForeignOptions::new().byteswap(args.byteswap);
    if let Some(dtype) = args.untyped {
        options = options.untyped(dtype);
    }
    let inputs: Vec<Input<'_>> =
        files.iter().map(|path| Ok((path.as_path(), options.open(path)?))).collect::<Result<_>>()?;
    let tensor_count = check_names(&inputs, &args.prefix)?;
    let attributes = merge_metadata(&inputs);
    let texts = attributes.iter().map(|(&key, &(_, value))| (key, value));
    check_attributes(texts).map_err(|e| Error::Refused(format!("import: {e}")))?;
    let size_bytes = inputs.iter().map(|(_, file)| file.size_bytes()).fold(0, u64::saturating_add);

    let store = open_or_create(target)?;
    let bar = progress("import", size_bytes);
    let generation = fill(&store, args, &inputs, &attributes, &mut |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    message(&format!(
        "imported {}, {}, into {}: generation {generation}",
        counted(tensor_count, "tensor"),
        HumanBytes(size_bytes),
        target.display()
    ));
    Ok(())
}

/// Commits everything; gives the generation.
fn fill(
    store: &Store,
    args: &ImportArgs,
    inputs: &[Input<'_>],
    attributes: &BTreeMap<&str, (&Path, &str)>,
    progress: &mut dyn FnMut(u64),
) -> stridemap::Result<u64> {
    let mut txn = store.begin()?;
    txn.on_existing(args.existing.policy());
    for (_, file) in inputs {
        txn.import(file, &args.prefix, progress)?;
    }
    let standing = store.attributes();
    for (&key, &(path, value)) in attributes {
        let differs = standing.get(key).is_some_and(|stands| stands != value);
        if differs && args.existing.policy() == OnExisting::Refuse {
            message(&format!("note: the store keeps its own {key:?}, and not that of {}", path.display()));
        } else {
            if differs {
                message(&format!("note: the {key:?} of {} replaces the store's", path.display()));
            }
            txn.set_attribute(key, value)?;
        }
    }
    txn.commit()
}

/// The store to import into; made if nothing is there, or an empty directory.
fn open_or_create(path: &Path) -> Result<Store> {
    let refused = match Store::open(path) {
        Ok(store) => return Ok(store),
        Err(e) => e,
    };
    match refused.kind() {
        ErrorKind::NotFound => Ok(Store::create(path)?),
        // An empty directory will do; any other is what it was.
        ErrorKind::NotAStore => Store::create(path).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => refused.into(),
            _ => e.into(),
        }),
        _ => Err(refused.into()),
    }
}

/// A file's path as it was given, and what is in it.
type Input<'a> = (&'a Path, ForeignFile);

/// Counts the tensors; one file's must not silently take the place of another's.
fn check_names(inputs: &[Input<'_>], prefix: &str) -> Result<u64> {
    let mut owners = BTreeMap::new();
    for (path, file) in inputs {
        for tensor in file.tensors() {
            let name = tensor.name;
            let refused = |e| Error::Refused(format!("import {}: {e}", path.display()));
            check_name(&format!("{prefix}{name}")).map_err(refused)?;
            if let Some(other) = owners.insert(name.clone(), path) {
                return Err(Error::Refused(format!(
                    "import: {} and {} both have a tensor {name:?}; import them one by one, with --prefix",
                    other.display(),
                    path.display()
                )));
            }
        }
    }
    Ok(owners.len() as u64)
}

/// What the files say of themselves, and which file said it. Where two disagree the last is right, and that is noted.
fn merge_metadata<'a>(inputs: &'a [Input<'_>]) -> BTreeMap<&'a str, (&'a Path, &'a str)> {
    let mut merged: BTreeMap<&str, (&Path, &str)> = BTreeMap::new();
    for (path, file) in inputs {
        for (key, value) in file.attributes() {
            let earlier = merged.insert(key, (path, value));
            if let Some((other, _)) = earlier.filter(|&(_, earlier)| earlier != value) {
                message(&format!(
                    "note: {} and {} disagree on {key:?}; the last wins",
                    other.display(),
                    path.display()
                ));
            }
        }
    }
    merged
}
