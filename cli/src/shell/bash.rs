//! Completions in bash.
//!
//! Bash divides words at `:` and `=`, and passes quotes as they were typed, so names with such characters could not be
//! completed from its words. This module divides the line by its own rules. It returns the part of a candidate after
//! the place where bash last divided the line. Bash puts candidates in quotes where necessary, because it takes them
//! for file names.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap_complete::engine::complete;
use clap_complete::env::EnvCompleter;

use crate::names::one_line;

pub(super) struct Bash;

const SCRIPT: &str = r#"_stridemap() {
    compopt -o filenames +o nospace 2> /dev/null
    local candidate
    COMPREPLY=()
    # Without quotes, a candidate such as * would become the names of files.
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <(VARIABLE=bash _STRIDEMAP_LINE="${COMP_LINE:0:COMP_POINT}" stridemap -- stridemap 2> /dev/null)
    [[ ${COMPREPLY-} == *[=.:/] ]] && compopt -o nospace 2> /dev/null
    return 0
}
complete -o bashdefault -o default -o nosort -F _stridemap stridemap 2> /dev/null ||
    complete -o bashdefault -o default -F _stridemap stridemap
"#;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == "bash"
    }

    fn write_registration(
        &self,
        variable: &str,
        _name: &str,
        _bin: &str,
        _completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        write!(buf, "{}", SCRIPT.replace("VARIABLE", variable))
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        _words: Vec<OsString>,
        current_dir: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        let Line { words, inserted_from } = Line::typed().unwrap_or_else(|| Line::parse(""));
        let index = words.len().saturating_sub(1);
        let is_option = words.last().is_some_and(|word| word.starts_with('-'));
        let words = words.into_iter().map(OsString::from).collect();
        let candidates = complete(command, words, index, current_dir)?;
        let texts = candidates.iter().filter_map(|candidate| {
            // For an empty word, options would hide the names.
            let text = candidate.get_value().to_str().filter(|text| is_option || !text.starts_with('-'))?;
            text.get(inserted_from..).filter(|_| is_safe(text)).map(str::to_owned)
        });
        let lines: Vec<String> = texts.collect();
        lines.iter().try_for_each(|line| writeln!(buf, "{line}"))
    }
}

/// Returns whether bash can be given a candidate. Once a word contains one of these characters, bash no longer puts it
/// in quotes, so it would run what is between backticks. A newline divides a candidate in two.
fn is_safe(candidate: &str) -> bool {
    !candidate.contains(['`', '$', '!']) && !candidate.starts_with('~') && one_line(candidate) == candidate
}

/// Returns the words of the command line, if bash runs this program.
pub(super) fn words() -> Option<Vec<OsString>> {
    Some(Line::typed()?.words.into_iter().map(OsString::from).collect())
}

/// Returns a word without its quotes.
pub(super) fn unquoted(word: &str) -> String {
    Line::parse(word).words.pop().unwrap_or_default()
}

/// The words of a command line, without quotes.
struct Line {
    /// The last one is the word to complete, which can be empty.
    words: Vec<String>,
    /// The offset in the last word, in bytes, from which bash replaces it.
    inserted_from: usize,
}

impl Line {
    /// Returns the line up to the cursor, if bash runs this program.
    fn typed() -> Option<Self> {
        std::env::var("_STRIDEMAP_LINE").ok().map(|line| Line::parse(&line))
    }

    fn parse(line: &str) -> Self {
        let (mut words, mut word) = (Vec::new(), String::new());
        let (mut quote, mut inserted_from, mut is_word) = (None, 0, false);
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            let is_quoted = quote.is_some();
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, '\\') => word.extend(chars.next()),
                (Some('"'), '\\') => match chars.next() {
                    Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                    other => word.extend(['\\'].into_iter().chain(other)),
                },
                (None, c) if c.is_whitespace() => {
                    if is_word {
                        words.push(std::mem::take(&mut word));
                    }
                    (is_word, inserted_from) = (false, 0);
                    continue;
                }
                _ => word.push(c),
            }
            is_word = true;
            if !is_quoted && matches!(c, ':' | '=') {
                inserted_from = word.len();
            }
        }
        words.push(word);
        Line { words, inserted_from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_divided_as_bash_divides_it() {
        for (line, words, inserted_from) in [
            ("", &[""][..], 0),
            ("stridemap ", &["stridemap", ""], 0),
            ("stridemap  ls a", &["stridemap", "ls", "a"], 0),
            (r"s a\ b 'c d", &["s", "a b", "c d"], 0),
            (r#"s "a'\"\n" '' x"y"#, &["s", "a'\"\\n", "", "xy"], 0),
            ("s ab:c", &["s", "ab:c"], 3),
            ("s --rename=a=b", &["s", "--rename=a=b"], 11),
            ("s 'ab:c", &["s", "ab:c"], 0),
            ("s ab:c d", &["s", "ab:c", "d"], 0),
        ] {
            let parsed = Line::parse(line);
            assert_eq!(
                (parsed.words, parsed.inserted_from),
                (words.iter().map(|&w| w.to_owned()).collect(), inserted_from),
                "{line}"
            );
        }
    }
}
