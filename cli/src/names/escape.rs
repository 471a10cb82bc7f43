//! Names and other text as they are printed.

use std::borrow::Cow;

use crate::expr::{QUOTE, bare_name};

/// Whether a terminal would not show the character where it stands: control characters, line separators, characters
/// that change the direction of the text, characters without width, and two that are none and that no XML may contain.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether a reader could not tell where a text begins and ends, or which characters it has.
fn is_unclear(text: &str) -> bool {
    let has_hidden = match text.is_ascii() {
        true => text.bytes().any(|byte| byte.is_ascii_control()),
        false => text.contains(is_hidden),
    };
    text.is_empty() || text.trim() != text || text.starts_with(QUOTE) || has_hidden
}

/// Returns the name as it is written in an expression: quoted if it would otherwise be read as an operation, or is not
/// clear without quotes.
pub(crate) fn quoted(name: &str) -> Cow<'_, str> {
    if !is_unclear(name) && bare_name(name) == name {
        return name.into();
    }
    let mut text = String::from(QUOTE);
    for c in name.chars() {
        match c {
            QUOTE | '\\' => text.extend(['\\', c]),
            c if is_hidden(c) => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text.push(QUOTE);
    text.into()
}

/// Returns the name as it is, or quoted if it is not clear without quotes.
pub(crate) fn listed(name: &str) -> Cow<'_, str> {
    if is_unclear(name) { quoted(name) } else { name.into() }
}

/// Returns whether a text means itself in every shell.
pub(crate) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || "._/-+@%,".contains(c))
}

/// Returns the text as one word of a shell's command line: quoted if the shell would change it. Hidden characters are
/// escaped, as bash, zsh and ksh read them.
pub(crate) fn shell_word(text: &str) -> Cow<'_, str> {
    if is_plain(text) && !text.is_empty() {
        return text.into();
    }
    if !text.contains(is_hidden) {
        return format!("'{}'", text.replace('\'', r"'\''")).into();
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if is_hidden(c) && c.is_ascii() => word += &format!("\\x{:02x}", u32::from(c)),
            c if is_hidden(c) => word += &format!("\\U{:08x}", u32::from(c)),
            c => word.push(c),
        }
    }
    word.push('\'');
    word.into()
}

/// Returns a command line of this program for a shell, with these positional arguments.
pub(crate) fn command_line(command: &str, arguments: &[&str]) -> String {
    let mut line = format!("stridemap {command}");
    if arguments.iter().any(|argument| argument.starts_with('-')) {
        line += " --";
    }
    for argument in arguments {
        line += " ";
        line += &shell_word(argument);
    }
    line
}

/// Returns the name as an argument that stands for it: one that begins with a quote is quoted, because it would otherwise
/// be read as a name in quotes.
pub(crate) fn argument(name: &str) -> Cow<'_, str> {
    if name.starts_with(QUOTE) { quoted(name) } else { name.into() }
}

/// Returns the text to print after the key of an attribute: " of" and the tensor or prefix that the attribute belongs
/// to, or nothing if it belongs to the store or file itself.
pub(crate) fn of_scope(scope: &str) -> String {
    if scope.is_empty() { String::new() } else { format!(" of {}", quoted(scope)) }
}

/// Returns whether a text has characters that [`one_line`] escapes.
pub(crate) fn has_hidden(text: &str) -> bool {
    text.contains(is_hidden)
}

/// Returns the text on one line, with hidden characters escaped. Names and attributes may contain any character.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}
