//! The words of the command line, before and while they are parsed.

use std::env;
use std::ffi::OsString;

use clap::{ArgMatches, ColorChoice, CommandFactory as _, FromArgMatches as _, ValueEnum as _};

use super::mistaken::explain;
use crate::args::Args;

/// Parses the command line. Help and errors have colors as `--color` says.
pub(crate) fn parse() -> Result<(Args, ArgMatches), clap::Error> {
    let words = with_human_sizes(env::args_os().collect());
    let command = Args::command().color(color(&words));
    let matches = command.try_get_matches_from(words).map_err(explain)?;
    Ok((Args::from_arg_matches(&matches)?, matches))
}

/// Returns the value of `--color`. Help and errors end the parsing before it is known otherwise.
fn color(words: &[OsString]) -> ColorChoice {
    let words = words.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str());
    let words: Vec<&str> = words.collect();
    let after = words.iter().position(|word| *word == "--color").and_then(|at| words.get(at + 1));
    let value = words.iter().find_map(|word| word.strip_prefix("--color=")).or(after.copied());
    value.and_then(|value| ColorChoice::from_str(value, false).ok()).unwrap_or_default()
}

/// Replaces the `h` of `ls -lh` by its long option: by itself, `-h` prints help in every command.
fn with_human_sizes(words: Vec<OsString>) -> Vec<OsString> {
    let is_ls = words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    if is_ls.is_none_or(|word| word != "ls") {
        return words;
    }
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let is_flags = |word: &str| word.len() > 1 && word[1..].chars().all(|c| "lh10qv".contains(c));
    let flags = |word: &OsString| {
        word.to_str().filter(|word| word.starts_with('-') && is_flags(word)).map(str::to_owned)
    };
    let flags: Vec<Option<String>> = words.iter().take(end).map(flags).collect();
    let is_long = flags.iter().flatten().any(|flags| flags.contains('l'));
    let mut replaced = Vec::new();
    for (index, word) in words.into_iter().enumerate() {
        match flags.get(index).cloned().flatten().filter(|flags| is_long && flags.contains('h')) {
            None => replaced.push(word),
            Some(flags) => {
                let rest = flags.replace('h', "");
                replaced.extend((rest.len() > 1).then(|| rest.into()));
                replaced.push("--human-readable".into());
            }
        }
    }
    replaced
}
