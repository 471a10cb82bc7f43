//! The names of tensors and tags that complete a word.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _};
use stridemap::{DType, ExternalFiles, StoreOptions};

use crate::args::Reading;
use crate::at::split;
use crate::change::export::is_output;
use crate::input::Input;
use crate::names::is_plain;
use crate::remote::is_url;

/// The maximum number of names that are offered. If there are more, at most this many of their modules are offered
/// instead.
const MAX_NAMES: usize = 500;

/// The value names of positional arguments that are neither paths nor names of tensors.
const OTHERS: [&str; 3] = ["KEY", "VALUE", "URL"];

/// The options whose value is the name of a tensor or the beginning of one.
const OPTIONS: [&str; 5] = ["fuse", "of", "prefix", "rename", "skip"];

/// The commands whose positional arguments after the store are tags.
const TAG_COMMANDS: [&str; 3] = ["tag", "restore", "prune"];

/// The commands that take `STORE@TAG`.
const LOOKING: [&str; 14] = [
    "info", "ls", "tree", "show", "stats", "plot", "report", "diff", "export", "copy", "verify", "du",
    "list", "get",
];

/// Returns the command with completions for every argument that is a path, the name of a tensor or a tag.
pub(super) fn with_names(command: Command) -> Command {
    let takes_tags = TAG_COMMANDS.contains(&command.get_name());
    let looks = LOOKING.contains(&command.get_name());
    let with_completer = |arg: Arg| {
        let is_prefix = arg.get_id() == "prefix";
        let is_tag =
            takes_tags && arg.is_positional() && !is_prefix || matches!(arg.get_long(), Some("at" | "over"));
        if arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == "DTYPE")) {
            return arg.add(ArgValueCompleter::new(dtypes));
        }
        match (is_path(&arg), is_tag, is_name(&arg)) {
            _ if arg.get_id() == "words" => arg.add(ArgValueCompleter::new(paths_and_names)),
            (true, ..) if looks && arg.is_positional() => arg.add(ArgValueCompleter::new(paths_and_tags)),
            (true, ..) => arg.add(ArgValueCompleter::new(paths())),
            _ if is_prefix && takes_tags => arg.add(ArgValueCompleter::new(tagged_names)),
            (_, true, _) => arg.add(ArgValueCompleter::new(tags)),
            (.., true) => arg.add(ArgValueCompleter::new(names)),
            _ => arg,
        }
    };
    command.mut_args(with_completer).mut_subcommands(with_names)
}

/// Returns the names of dtypes that begin with `current`.
fn dtypes(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = DType::ALL.iter().map(|dtype| dtype.name());
    let current = current.to_string_lossy();
    names.filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

fn paths() -> PathCompleter {
    PathCompleter::any().filter(is_plain_path)
}

/// Returns the paths that begin with `current`. After the @ of `STORE@TAG`, returns the tags of the store.
fn paths_and_tags(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = || {
        let current = Some(Path::new(current)).filter(|current| !is_url(current))?;
        let (path, tag) = split(current)?;
        let tags = tags_of(&open(path.into())?, tag)?;
        Some(tags.into_iter().map(|tag| format!("{}@{tag}", path.display())).collect::<Vec<_>>())
    };
    match found() {
        Some(found) => found.into_iter().map(CompletionCandidate::new).collect(),
        None => paths().complete(current),
    }
}

/// Returns the tags that begin with `current`, of the first store on the command line.
fn tags(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = || tags_of(&env::args_os().skip(3).find_map(open)?, current.to_str()?);
    found().unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the tags of a store that begin with `start`, the newest first.
fn tags_of(input: &Input, start: &str) -> Option<Vec<String>> {
    let Input::Store(store, ..) = input else { return None };
    let tags = store.tags().ok()?.into_iter().map(|tag| tag.name).rev();
    Some(tags.filter(|tag| tag.starts_with(start) && is_plain(tag)).take(MAX_NAMES).collect())
}

/// Returns the paths that begin with `current`, and the names, which an export has only after the file to write.
fn paths_and_names(current: &OsStr) -> Vec<CompletionCandidate> {
    let is_option = |word: &OsString| word.len() > 1 && word.as_encoded_bytes().starts_with(b"-");
    let words: Vec<OsString> = env::args_os().skip(3).filter(|word| !is_option(word)).collect();
    let export = words.iter().position(|word| word == "export");
    // The first word after the command is a source, and the last one is to be completed.
    let before = |at: usize| words.get(at + 2..words.len().saturating_sub(1)).unwrap_or_default();
    let are_names = export.is_none_or(|at| before(at).iter().any(|word| is_output(word)));
    let names = if are_names { names(current) } else { Vec::new() };
    names.into_iter().chain(paths_and_tags(current)).collect()
}

fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == clap::builder::ValueParser::path_buf().type_id()
}

/// Returns whether the last part of a path can be offered: a shell inserts a candidate as it is, and would run what is
/// between backticks. The parts before it have been typed.
fn is_plain_path(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.to_str().is_some_and(is_plain))
}

fn is_name(arg: &Arg) -> bool {
    let is_other = || {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| OTHERS.contains(&name.as_str())) || !arg.get_possible_values().is_empty()
    };
    match arg.get_long() {
        Some(long) => OPTIONS.contains(&long),
        None => arg.is_positional() && !is_path(arg) && !is_other(),
    }
}

/// Returns the names that begin with `current`, in the first store or file on the command line.
fn names(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = || {
        let source = env::args_os().skip(3).find_map(open)?;
        names_in(&source, current.to_str()?)
    };
    found().unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the names that begin with `current` at the tag that follows the first store on the command line.
fn tagged_names(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = || {
        let words: Vec<OsString> = env::args_os().skip(3).collect();
        let at = words.iter().position(|word| open(word.clone()).is_some())?;
        let mut tagged = words.get(at)?.clone();
        tagged.push("@");
        tagged.push(words.get(at + 1..)?.iter().find(|word| !word.as_encoded_bytes().starts_with(b"-"))?);
        names_in(&open(tagged)?, current.to_str()?)
    };
    found().unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the names of a store or a file that begin with `current`.
fn names_in(source: &Input, current: &str) -> Option<Vec<String>> {
    let names = source.tensors(current).ok()?.map_while(Result::ok).map(|info| info.name);
    Some(shortened(names.filter(|name| is_plain(name)).collect(), current))
}

/// Opens a word of the command line, if it is a store or a file with tensors. Few words are other paths, and these are
/// refused. A completion sends no request, so a URL is refused, too.
fn open(word: OsString) -> Option<Input> {
    let path = match Path::new(&word).strip_prefix("~") {
        Ok(rest) => PathBuf::from(env::var_os("HOME")?).join(rest),
        Err(_) => PathBuf::from(word),
    };
    let options = StoreOptions::new().external(ExternalFiles::Refuse);
    (!is_url(&path) && (path.exists() || split(&path).is_some()))
        .then(|| Input::open_quietly(&path, &Reading::default(), &options).ok())
        .flatten()
}

/// Returns the names, or the modules that follow `current` if there are too many names.
fn shortened(names: Vec<String>, current: &str) -> Vec<String> {
    if names.len() <= MAX_NAMES {
        return names;
    }
    let module = |name: &String| {
        let rest = &name[current.len()..];
        let end = rest.find(['.', '/']).map_or(rest.len(), |at| at + 1);
        name[..current.len() + end].to_owned()
    };
    names.iter().map(module).collect::<BTreeSet<_>>().into_iter().take(MAX_NAMES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_offered_by_module() {
        let names: Vec<String> = (0..2000).map(|i| format!("layer.{}.w{i}", i / 1000)).collect();
        assert_eq!(shortened(names.clone(), "lay"), ["layer."]);
        assert_eq!(shortened(names.clone(), "layer."), ["layer.0.", "layer.1."]);
        assert_eq!(shortened(names[..500].to_vec(), ""), names[..500]);
        let flat: Vec<String> = (0..2000).map(|i| format!("w{i:04}")).collect();
        assert_eq!(shortened(flat.clone(), "w"), flat[..500]);
    }
}
