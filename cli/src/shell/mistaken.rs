//! Hints for a word that is not a command.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::names::{is_like_a_file, shell_word};

/// Words that people expect to be commands, each with what to write.
const OTHERS: [(&str, &str); 2] = [
    (
        "cp",
        "ln adds a second name for a tensor, and export copies tensors to a new store: stridemap export STORE COPY.smap NAME",
    ),
    (
        "copy",
        "export copies tensors to a new store: stridemap export STORE COPY.smap NAME; ln adds a second name for a tensor",
    ),
];

/// Adds a hint to the error about a word that is not a command.
pub(crate) fn explain(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let hint = match OTHERS.iter().find(|(other, _)| other == word) {
        Some((_, hint)) => (*hint).to_owned(),
        None if Path::new(word).exists() || is_like_a_file(Path::new(word)) => {
            format!("the command comes first: stridemap info {}", shell_word(word))
        }
        None => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    error
}
