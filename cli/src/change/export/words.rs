//! Which of the words after the first source are sources, which one is the file to write, and which are names.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::change::stdin::PIPE;
use crate::separator::words_after_separator;

/// The extensions of files that an export writes.
const EXTENSIONS: [&str; 5] = ["safetensors", "gguf", "npy", "npz", "smap"];

/// The words after the first source.
#[derive(Debug, PartialEq)]
pub(super) struct Words<'a> {
    pub(super) sources: &'a [OsString],
    pub(super) out: &'a OsStr,
    pub(super) names: &'a [OsString],
}

impl<'a> Words<'a> {
    pub(super) fn of(words: &'a [OsString]) -> Self {
        Words::before(words, words_after_separator())
    }

    /// Splits the words. The last `named` ones, which follow `--`, are names. If all do, the first is the file to write.
    fn before(words: &'a [OsString], named: usize) -> Self {
        let end = words.len().saturating_sub(named);
        let outputs = words.iter().take(end).rposition(|word| is_output(word));
        let (sources, rest) = words.split_at(outputs.unwrap_or(0));
        let (out, names) =
            rest.split_first().map_or((OsStr::new(""), rest), |(out, names)| (out.as_os_str(), names));
        Words { sources, out, names }
    }
}

/// Returns whether a word is like the name of a file that an export writes, or stands for standard output. A glob is
/// not, and a name in quotes ends with a quote.
pub(crate) fn is_output(word: &OsStr) -> bool {
    let extension = Path::new(word).extension().unwrap_or_default();
    let is_glob = || word.as_encoded_bytes().iter().any(|byte| b"*?".contains(byte));
    word == PIPE || EXTENSIONS.iter().any(|known| extension == *known) && !is_glob()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_word_with_a_known_extension_is_the_file_to_write() {
        for (words, named, expected) in [
            (&["out.npy", "w"][..], 0, (0, "out.npy")),
            (&["b.npz", "out.safetensors", "enc.", "*.npy"], 0, (1, "out.safetensors")),
            (&["b.npz", "c.pt", "-", "w"], 0, (2, "-")),
            (&["out.npz", "'x.npy'"], 0, (0, "out.npz")),
            (&["out.npz", "x.npy"], 1, (0, "out.npz")),
            (&["out.npz", "x.npy"], 2, (0, "out.npz")),
            (&["out.npz", "x.npy"], 3, (0, "out.npz")),
            // No file to write: the first word was probably meant.
            (&["out.txt", "w"], 0, (0, "out.txt")),
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let (at, out) = expected;
            let expected = Words { sources: &words[..at], out: OsStr::new(out), names: &words[at + 1..] };
            assert_eq!(Words::before(&words, named), expected, "{words:?} {named}");
        }
    }
}
