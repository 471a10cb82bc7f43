//! The stores and files that are exported together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stridemap::{Error as LibraryError, Result as LibraryResult, Snapshot, Store, Tensor, TensorInfo};
use stridemap_interop::{FileFormat, gguf};

use super::{Export, is_output};
use crate::at::split;
use crate::change::import::note_long_attributes;
use crate::change::select::report_unreadable;
use crate::change::shared_bytes;
use crate::change::stdin::PIPE;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::names::{Named, Pattern, command_line, pattern, shell_word};
use crate::remote::{is_url, shown};
use crate::ui::message;

/// The key in the metadata of safetensors files that names the library that the tensors are for.
pub(super) const LIBRARY_KEY: &str = "format";

/// The sources, in the order of the command line.
pub(super) struct Sources(Vec<Input>);

impl Sources {
    pub(super) fn open(args: &Export<'_>) -> Result<Self> {
        let (reading, options) = (&args.options.reading, args.options.external.options());
        let open = |(index, &path): (usize, &&Path)| {
            if path.as_os_str() == PIPE {
                let why = "only import reads standard input; import it into a store, and export that";
                return Err(Error::Refused(format!("export {PIPE}: {why}")));
            }
            if index > 0 && !is_there(path) {
                let why = "no such file or store; the file to write comes before the names, and -- before those that end like one";
                return Err(Error::at("export", path, format!("{why}: {}", in_order(args, path))));
            }
            Input::open_quietly(path, reading, &options)
        };
        Ok(Sources(args.sources.iter().enumerate().map(open).collect::<Result<_>>()?))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Input> {
        self.0.iter()
    }

    /// Returns the source of a copy, with its path.
    pub(super) fn only_store(&self, out: &Path) -> Result<(&Store, &Snapshot, &Path)> {
        let refused = |why: String| Err(Error::at("export", out, why));
        match &self.0[..] {
            [Input::Store(store, snapshot, path)] => Ok((store, snapshot, path)),
            [Input::File(file)] => {
                let import = command_line("import", &[&file.path().to_string_lossy(), &out.to_string_lossy()]);
                let (file, format) = (file.path().display(), file.format());
                refused(format!("{file} is a {format} file, and only a store is copied; import it: {import}"))
            }
            _ => refused(
                "a copy is of one store; export it alone, and add tensors of others with copy, or of files with import"
                    .to_owned(),
            ),
        }
    }

    /// Refuses what cannot be read and is selected, or prints its names with `--skip-unreadable`.
    pub(super) fn check_readable(&self, args: &Export<'_>) -> Result<()> {
        let patterns: Vec<Pattern> =
            args.names.iter().map(|text| pattern(text, self)).collect::<Result<_>>()?;
        let is_selected = |name: &str| match patterns.is_empty() {
            true => name.starts_with(&args.options.prefix),
            false => patterns.iter().any(|pattern| pattern.matches(name)),
        };
        for input in &self.0 {
            let Input::File(file) = input else { continue };
            let mut unreadable = file.skipped().iter().filter(|unreadable| is_selected(&unreadable.name));
            unreadable.try_for_each(|it| report_unreadable(it, args.options.skip_unreadable))?;
            if file.long_attributes().iter().any(|name| is_selected(name)) {
                note_long_attributes(file.path(), file);
            }
        }
        Ok(())
    }

    /// Loads the named tensors, or all whose names begin with the prefix, which is removed from their names. Two tensors
    /// with the same name are refused.
    pub(super) fn load(&self, prefix: &str, names: &BTreeSet<String>) -> Result<Vec<(String, Tensor)>> {
        let mut loaded: BTreeMap<String, (Tensor, &Path)> = BTreeMap::new();
        let mut clashes: Vec<(String, &Path, &Path)> = Vec::new();
        for input in &self.0 {
            let tensors: Vec<(String, Tensor)> = match input {
                Input::Store(_, snapshot, _) if names.is_empty() => {
                    snapshot.iter_loaded(prefix)?.collect::<LibraryResult<_>>()?
                }
                _ if names.is_empty() => {
                    let load = |info: LibraryResult<TensorInfo>| {
                        let name = info?.name;
                        input.load(&name).map(|tensor| (name, tensor))
                    };
                    input.tensors(prefix)?.map(load).collect::<LibraryResult<_>>()?
                }
                _ => {
                    let there = names.iter().filter_map(|name| match input.contains(name) {
                        Ok(false) => None,
                        Ok(true) => Some(input.load(name).map(|tensor| (name.clone(), tensor))),
                        Err(e) => Some(Err(e)),
                    });
                    there.collect::<LibraryResult<_>>()?
                }
            };
            for (name, tensor) in tensors {
                match loaded.get(&name) {
                    Some((_, other)) => clashes.push((name, *other, input.path())),
                    None => drop(loaded.insert(name, (tensor, input.path()))),
                }
            }
        }
        if let Some((name, a, b)) = clashes.first() {
            let (a, b) = (shown(a), shown(b));
            let more = match clashes.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more of the names clash"),
            };
            return Err(Error::Refused(format!(
                "export: {a} and {b} both have a tensor {name:?}{more}; export some of the names, or import both into a \
                 store, with --prefix or --rename, and export that"
            )));
        }
        if let Some(missing) = names.iter().find(|name| !loaded.contains_key(*name)) {
            Named::load(self, missing).map(drop)?; // says which names there are
        }
        let without_prefix = |(name, (tensor, _)): (String, _)| (name[prefix.len()..].to_owned(), tensor);
        Ok(loaded.into_iter().map(without_prefix).collect())
    }

    /// Returns the attributes of the prefix. A file has attributes only without a prefix. If two sources disagree, the last
    /// one wins and a note is printed.
    pub(super) fn attributes(&self, prefix: &str) -> BTreeMap<String, String> {
        let mut merged: BTreeMap<String, (String, &Path)> = BTreeMap::new();
        for input in &self.0 {
            let attributes = match input {
                Input::Store(_, snapshot, _) => snapshot.attributes(prefix),
                Input::File(file) if prefix.is_empty() => file.attributes().clone(),
                Input::File(_) => BTreeMap::new(),
            };
            for (key, value) in attributes {
                let earlier = merged.insert(key.clone(), (value.clone(), input.path()));
                if let Some((_, other)) = earlier.filter(|(earlier, _)| *earlier != value) {
                    let (other, path) = (shown(other), shown(input.path()));
                    message(&format!("note: {other} and {path} disagree on {key:?}; the last wins"));
                }
            }
        }
        merged.into_iter().map(|(key, (value, _))| (key, value)).collect()
    }

    /// Returns the library that the tensors are for: `pt` for PyTorch. Loaders of models refuse a file that does not say.
    pub(super) fn library(&self) -> Option<String> {
        let of_input = |input: &Input| match input {
            Input::Store(_, snapshot, _) => snapshot.attributes("").remove(LIBRARY_KEY),
            Input::File(file) if file.format() == FileFormat::PyTorch => Some("pt".to_owned()),
            Input::File(file) => file.attributes().get(LIBRARY_KEY).cloned(),
        };
        self.0.iter().find_map(of_input)
    }

    /// Compares the members of archives with their checksums, which the written file does not have.
    pub(super) fn verify_members(&self, prefix: &str, names: &BTreeSet<String>) -> Result<()> {
        for input in &self.0 {
            let Input::File(file) = input else { continue };
            let infos = infos(input, prefix, names)?;
            let storages: BTreeSet<u64> = infos.iter().map(|info| info.storage_id).collect();
            let has_checksum = |id: &u64| file.has_checksum(*id);
            let mut checked = storages.into_iter().filter(has_checksum);
            checked.try_for_each(|id| file.verify_storage(id, |_| ()).map(drop))?;
        }
        Ok(())
    }

    /// Returns the types of tensors that their attributes name, by name without the prefix.
    pub(super) fn gguf_types(&self, prefix: &str, tensors: &[(String, Tensor)]) -> BTreeMap<String, String> {
        let type_of = |name: &str| {
            let name = format!("{prefix}{name}");
            self.0.iter().find_map(|input| match input {
                Input::Store(_, snapshot, _) => snapshot.attributes(&name).remove(gguf::TYPE_KEY),
                Input::File(file) => file.attributes_of(&name).remove(gguf::TYPE_KEY),
            })
        };
        tensors.iter().filter_map(|(name, _)| Some((name.clone(), type_of(name)?))).collect()
    }

    /// Says which of the exported tensors share bytes. `tensors` are those that are written, by name without the prefix.
    pub(super) fn note_shared_bytes(
        &self,
        prefix: &str,
        names: &BTreeSet<String>,
        tensors: &[(String, Tensor)],
    ) -> Result<()> {
        let written: BTreeMap<&str, u64> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.nbytes() as u64)).collect();
        let size_bytes = |info: &TensorInfo| {
            let name = info.name.get(prefix.len()..).unwrap_or_default();
            written.get(name).copied().unwrap_or(info.header.nbytes() as u64)
        };
        for input in &self.0 {
            let infos = infos(input, prefix, names)?;
            if let Some(note) =
                shared_bytes::note(infos.into_iter().map(Ok), size_bytes, "so the file stores them twice")?
            {
                message(&note);
            }
        }
        Ok(())
    }
}

fn is_there(path: &Path) -> bool {
    is_url(path) || path.exists() || split(path).is_some()
}

/// Returns the command that was probably meant, if nothing is at `missing`: it is a name, or the file to write.
fn in_order(args: &Export<'_>, missing: &Path) -> String {
    let (there, mut names): (Vec<&Path>, Vec<&Path>) = args.sources.iter().partition(|path| is_there(path));
    let mut out = args.out;
    if is_output(missing.as_os_str()) {
        out = missing;
        names.retain(|name| *name != missing);
        names.push(args.out);
    }
    let text = |path: &Path| path.display().to_string();
    let names: Vec<String> = names.into_iter().map(text).chain(args.names.iter().cloned()).collect();
    let files: Vec<String> = there.into_iter().chain([out]).map(text).collect();
    let words =
        |words: &[String]| words.iter().map(|word| format!(" {}", shell_word(word))).collect::<String>();
    let end = if names.iter().any(|name| is_output(name.as_ref())) { " --" } else { "" };
    format!("stridemap export{}{end}{}", words(&files), words(&names))
}

/// Returns the headers of the named tensors of a source, or of those whose names begin with the prefix.
fn infos(input: &Input, prefix: &str, names: &BTreeSet<String>) -> LibraryResult<Vec<TensorInfo>> {
    if names.is_empty() {
        return input.tensors(prefix)?.collect();
    }
    let mut infos = Vec::new();
    for name in names {
        let first = input.tensors(name)?.next().transpose()?;
        infos.extend(first.filter(|info| info.name == *name));
    }
    Ok(infos)
}

impl Named for Sources {
    fn contains(&self, name: &str) -> LibraryResult<bool> {
        for input in &self.0 {
            if input.contains(name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the tensor of the first source that has it.
    fn load(&self, name: &str) -> LibraryResult<Tensor> {
        for input in &self.0 {
            if self.0.len() == 1 || input.contains(name)? {
                return input.load(name);
            }
        }
        Err(LibraryError::name_not_found("load", name, self.names()?))
    }

    fn names(&self) -> LibraryResult<Vec<String>> {
        let mut names = BTreeSet::new();
        for input in &self.0 {
            names.extend(input.names()?);
        }
        Ok(names.into_iter().collect())
    }
}
