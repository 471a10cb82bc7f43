//! Hints for a word that is not a command, and for arguments in another order.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory as _};

use crate::args::Args;
use crate::at::split;
use crate::error::Error;
use crate::names::{is_like_a_file, shell_word};
use crate::remote::is_url;

/// Words that people expect to be commands, each with what to write.
const OTHERS: [(&str, &str); 24] = [
    (
        "cp",
        "view saves a tensor under a second name: stridemap view STORE NAME NEW; copy copies tensors to another store: stridemap \
         copy STORE NAME STORE2",
    ),
    ("gc", "compact first deletes the files that are no longer needed: stridemap compact STORE"),
    ("map", "du shows which tensors share which bytes: stridemap du --map STORE"),
    ("watch", "log prints a line for each commit: stridemap log --follow STORE"),
    (
        "cast",
        "convert converts tensors of a store: stridemap convert STORE NAME --to DTYPE; export writes a converted file: stridemap \
         export FILE OUT --to DTYPE",
    ),
    ("rename", "mv renames tensors: stridemap mv STORE NAME NEW"),
    ("cat", "show prints the elements of a tensor: stridemap show STORE NAME"),
    ("undo", "restore goes back to a tagged generation, and log lists them: stridemap restore STORE TAG"),
    ("merge", "export merges files: stridemap export FILE FILE OUT"),
    ("split", "export writes the tensors that are named: stridemap export FILE OUT 'encoder.*'"),
    ("delete", "rm removes tensors: stridemap rm STORE NAME"),
    ("remove", "rm removes tensors: stridemap rm STORE NAME"),
    ("list", "ls lists the tensors: stridemap ls STORE"),
    ("print", "show prints the elements of a tensor: stridemap show STORE NAME"),
    ("head", "show prints rows of a tensor: stridemap show STORE 'NAME[:5]'"),
    ("size", "du shows what tensors take: stridemap du STORE NAME"),
    ("histogram", "plot draws histograms: stridemap plot STORE NAME --as histogram"),
    ("heatmap", "plot draws heat maps: stridemap plot STORE NAME"),
    ("untag", "tag removes tags, too: stridemap tag -d STORE TAG"),
    ("revert", "restore goes back to a tagged generation, and log lists them: stridemap restore STORE TAG"),
    ("rollback", "restore goes back to a tagged generation, and log lists them: stridemap restore STORE TAG"),
    ("completions", "generate prints scripts that complete command lines: stridemap generate bash"),
    ("man", "generate writes man pages: stridemap generate man DIR"),
    ("inspect", "info describes a store or a file: stridemap info --all STORE"),
];

/// Adds a hint to the error about a word that is not a command, or a page to write that is not after `-o`.
pub(super) fn explain(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && word.ends_with(".html")
    {
        let hint = format!("the page to write comes after -o: -o {}", shell_word(word));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let hint = match OTHERS.iter().find(|(other, _)| other == word) {
        Some((_, hint)) => (*hint).to_owned(),
        None if Path::new(word).exists() || is_like_a_file(Path::new(word)) => {
            format!("the command comes first: stridemap info {}", shell_word(word))
        }
        None => return with_nearest(error),
    };
    error.remove(ContextKind::SuggestedSubcommand);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    error
}

/// Keeps the nearest of the commands that clap suggests, which is its last.
fn with_nearest(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand)
        && let Some(nearest) = names.pop()
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(nearest));
    }
    error
}

/// The beginning of the hint about the order.
const ORDER: &str = "; the order is: ";

/// Returns the end of an error if the arguments were probably given in another order: the first one leads to nothing, and
/// another one to a store or a file with tensors.
pub(crate) fn order_hint(error: &Error, matches: &ArgMatches) -> String {
    let is_known = matches!(error, Error::Output(_)) || error.to_string().contains("the order is");
    if is_known { String::new() } else { usage_if_swapped(matches).unwrap_or_default() }
}

fn usage_if_swapped(mut matches: &ArgMatches) -> Option<String> {
    let mut command = Args::command();
    command.build();
    while let Some((name, below)) = matches.subcommand() {
        (command, matches) = (command.find_subcommand(name)?.clone(), below);
    }
    let mut positionals: Vec<_> = command.get_positionals().collect();
    positionals.sort_by_key(|arg| arg.get_index());
    let words = positionals.into_iter().filter_map(|arg| matches.get_raw(arg.get_id().as_str()));
    let mut paths = words.flatten().map(Path::new);
    let first = paths.next()?;
    let is_there = |path: &Path| path.exists() || is_url(path);
    if is_there(first) || split(first).is_some_and(|(path, _)| is_there(path)) {
        return None;
    }
    // The store comes last for import, which has its own hint if the first is a store.
    let is_file = |path: &Path| path.is_file() && is_like_a_file(path);
    match command.get_name() {
        "import" => paths.next_back().filter(|path| is_file(path))?,
        _ => paths.find(|path| path.join("FORMAT").is_file() || is_file(path))?,
    };
    let usage = command.render_usage().to_string();
    Some(format!("{ORDER}{}", usage.strip_prefix("Usage: ")?))
}
