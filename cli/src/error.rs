//! The error of a command, which is printed as one message.

use std::fmt;
use std::io;
use std::path::Path;

use crate::remote::shown;

/// A result whose error this program prints.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason that a command failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// An error of the library.
    Library(stridemap::Error),
    /// Standard output could not be written.
    Output(io::Error),
    /// No tensor or tag matches a glob, no tensor has a prefix, or no attribute has the given key.
    NoMatch(String),
    /// An error of the command itself.
    Refused(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Library(e) if e.kind() == stridemap::ErrorKind::Corrupt => write!(f, "{e}"),
            Error::Library(e) => f.write_str(&in_our_words(&e.to_string())),
            Error::Output(e) => write!(f, "write to standard output: {e}"),
            Error::NoMatch(why) | Error::Refused(why) => f.write_str(&with_flags(&without_rule(why))),
        }
    }
}

impl Error {
    /// Returns the error that a command refuses a path.
    pub(crate) fn at(command: &str, path: &Path, why: impl fmt::Display) -> Self {
        Error::Refused(format!("{command} {}: {why}", shown(path)))
    }
}

/// Converts an error of writing to standard output. A broken pipe means that the program reading it has stopped.
pub(crate) fn output_error(e: stridemap::Error) -> Error {
    match e.io_error().map(io::Error::kind) {
        Some(kind @ io::ErrorKind::BrokenPipe) => Error::Output(kind.into()),
        _ => e.into(),
    }
}

/// Phrases in the messages of the library, each with its replacement in the messages of this program.
const WORDS: [(&str, &str); 13] = [
    (", or drop tensors: each storage is an open file", ": each storage is an open file"),
    ("StoreOptions::external(ExternalFiles::Beside) (--external beside)", "--external beside"),
    ("StoreOptions::external(ExternalFiles::Anywhere) (--external anywhere)", "--external anywhere"),
    ("--untyped, or ForeignOptions::untyped", "--untyped"),
    ("or replace it, with Transaction::on_existing", "or give --force"),
    ("no tag, handle or snapshot keeps it", "no tag keeps it, and no process uses it"),
    ("run gc, which needs no space", "run compact, which first deletes what is not needed"),
    ("commit or run gc to make", "commit or run compact to make"),
    ("these bytes; gc frees them", "these bytes; compact frees them"),
    (
        "the file changed since it was adopted: the file is missing",
        "the file, which was imported in place, is missing",
    ),
    ("changed since it was adopted", "changed since it was imported in place"),
    (
        "restore the recorded file, or adopt the current one, or import it, which copies it",
        "bring back the recorded file, or import the present one with --force, in place or as a copy",
    ),
    ("; load the tensor again, restore it, or save it, which copies its elements", "; try again"),
];

/// The library's words for a file in no known format. The rest of its message compares the file with a safetensors
/// file.
const UNKNOWN_FORMAT: &str = "not a file of a supported format";

/// Whether a file was refused because it is of no known format, and not because it is damaged.
pub(crate) fn is_other_format(e: &stridemap::Error) -> bool {
    e.to_string().contains(UNKNOWN_FORMAT)
}

fn in_our_words(text: &str) -> String {
    let renamed = |theirs, ours| Some(format!("{ours}{}", text.strip_prefix(theirs)?));
    let renamed = renamed("save_view", "view").or_else(|| renamed("copy to: ", "view: "));
    let text = without_rule(renamed.as_deref().unwrap_or(text));
    if let Some((place, _)) = text.split_once(UNKNOWN_FORMAT) {
        return format!("{place}not a tensor file (supported: .safetensors, .npy, .npz, .pt, .pth, .gguf)");
    }
    with_flags(&text)
}

/// Names flags in place of items of the library.
fn with_flags(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// Removes the number of a rule of the format, as in "(F-4: names are ...)". Messages about
/// damage keep it: they are not passed here.
fn without_rule(text: &str) -> String {
    let rule = text.rsplit_once("(F-").and_then(|(before, rule)| Some((before, rule.split_once(": ")?)));
    match rule {
        Some((before, (number, rule))) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{before}({rule}")
        }
        _ => text.to_owned(),
    }
}

impl From<stridemap::Error> for Error {
    fn from(e: stridemap::Error) -> Self {
        Error::Library(e)
    }
}

/// Only I/O errors of standard output are converted by `?`. The commands convert other I/O errors themselves.
impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Error::Output(e)
    }
}

impl From<serde_json::Error> for Error {
    fn from(e: serde_json::Error) -> Self {
        if e.is_io() { Error::Output(e.into()) } else { Error::Refused(e.to_string()) }
    }
}
