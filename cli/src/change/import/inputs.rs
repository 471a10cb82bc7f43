//! The files to import, and what is refused of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use stridemap::ExternalFiles;
use stridemap_format::check_text;
use stridemap_interop::ForeignFile;

use super::ImportArgs;
use crate::change::stdin::{self, Piped};
use crate::error::{Error, Result};
use crate::input::check_found;

/// A file to import: the path as given, and the open file.
pub(super) type Input<'a> = (&'a Path, ForeignFile);

/// Checks the paths. Returns the path of the store, and the paths of the files to import.
pub(super) fn store_and_files(args: &ImportArgs) -> Result<(&Path, &[PathBuf])> {
    let refused = |why: &str| Err(Error::Refused(format!("import{why}")));
    let (target, files) = match args.paths.split_last() {
        Some((target, files)) if !files.is_empty() => (target, files),
        _ => return refused(": the store is missing\nUsage: stridemap import [OPTIONS] <FILE>... <STORE>"),
    };
    if target.as_os_str() == stdin::PIPE {
        return refused(
            ": the store is missing; - is standard input, and the last path must be that of a store",
        );
    }
    files.iter().try_for_each(|path| check_file(path))?;
    if args.in_place && files.iter().any(|path| path.as_os_str() == stdin::PIPE) {
        return refused(" --in-place -: standard input cannot stay in place; name a file");
    }
    Ok((target, files))
}

/// Opens the files. `piped` is standard input, if that is one of the files. What cannot be read is left out, and
/// refused later unless the options leave it out.
pub(super) fn open<'a>(
    args: &ImportArgs,
    files: &'a [PathBuf],
    mut piped: Option<Piped>,
) -> Result<Vec<Input<'a>>> {
    let options = args.reading.options().skip_unreadable(true);
    let open = |path: &'a PathBuf| {
        let file = match piped.take_if(|_| path.as_os_str() == stdin::PIPE) {
            Some(piped) => piped.open(options)?,
            None => options.open(path)?,
        };
        Ok((path.as_path(), file))
    };
    files.iter().map(open).collect()
}

/// Refuses a missing or empty file, and a directory, for which it suggests a path to give instead.
fn check_file(path: &Path) -> Result<()> {
    if path.as_os_str() == stdin::PIPE {
        return Ok(());
    }
    if !path.is_dir() {
        return check_found(path, "file");
    }
    let indexes = ["model.safetensors.index.json", "pytorch_model.bin.index.json"];
    let index = indexes.iter().map(|name| path.join(name)).find(|index| index.is_file());
    let what = match index {
        _ if path.join("FORMAT").is_file() => {
            "a store; name it last to import into it, or copy its tensors: copy STORE NAME... STORE2"
                .to_owned()
        }
        Some(index) => format!("a directory; name the index of the model in it, {}", index.display()),
        None => "a directory; name the files in it".to_owned(),
    };
    Err(Error::at("import", path, what))
}

/// Refuses files that the store could not open in place. The store may not exist yet, so this compares paths. The
/// library checks the files again when it opens them.
pub(super) fn check_locations(inputs: &[Input<'_>], target: &Path, allowed: ExternalFiles) -> Result<()> {
    match allowed {
        ExternalFiles::Anywhere => return Ok(()),
        ExternalFiles::Refuse => {
            let why = "import --in-place: with --external none, no command could read the elements";
            return Err(Error::Refused(why.to_owned()));
        }
        _ => {}
    }
    let holder = match fs::canonicalize(target) {
        Ok(store) => store.parent().map(Path::to_path_buf),
        Err(_) => fs::canonicalize(Path::new(".").join(target).parent().unwrap_or(Path::new("."))).ok(),
    };
    // The tensors of a sharded model are in its shards, not in the index.
    let shards = |file: &ForeignFile| file.storages().map(|storage| storage.file).collect::<BTreeSet<_>>();
    for path in inputs.iter().flat_map(|(_, file)| shards(file)) {
        let is_beside = fs::canonicalize(&path)
            .is_ok_and(|place| holder.as_ref().is_some_and(|holder| place.starts_with(holder)));
        if !is_beside {
            let why = format!(
                "the file is not in the directory that contains {}; --external anywhere allows that, for this command \
                 and every command that reads its elements",
                target.display()
            );
            return Err(Error::at("import --in-place", &path, why));
        }
    }
    Ok(())
}

/// Refuses an invalid name, and a name that is in two files, because one tensor would silently replace the other.
/// Returns the number of tensors.
pub(super) fn check_names(inputs: &[Input<'_>], prefix: &str) -> Result<u64> {
    let (mut owners, mut clashes) = (BTreeMap::new(), Vec::new());
    for (path, file) in inputs {
        for tensor in file.tensors() {
            let name = tensor.name;
            let refused = |e| {
                let hint = "; give it another name with --rename, or leave it out with --skip";
                Error::at("import", path, format_args!("{e}{hint}"))
            };
            check_text("name", &format!("{prefix}{name}")).map_err(refused)?;
            if let Some(other) = owners.insert(name.clone(), path) {
                clashes.push(format!(
                    "{} and {} both have a tensor {name:?}",
                    other.display(),
                    path.display()
                ));
            }
        }
    }
    if let Some(both) = clashes.first() {
        let more = match clashes.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more of the names clash"),
        };
        return Err(Error::Refused(format!("import: {both}{more}; import them separately, with --prefix")));
    }
    Ok(owners.len() as u64)
}
