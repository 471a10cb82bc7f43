//! Names and other text as they are printed.

use std::borrow::Cow;

use crate::expr::{QUOTE, bare_name};

/// Returns the name as it is written in an expression: quoted if it would otherwise not parse back or would span
/// several lines.
pub(crate) fn quoted(name: &str) -> Cow<'_, str> {
    let is_bare = !name.is_empty()
        && !name.starts_with(QUOTE)
        && bare_name(name) == name
        && !name.contains(char::is_control);
    if is_bare {
        return name.into();
    }
    let mut text = String::from(QUOTE);
    for c in name.chars() {
        match c {
            QUOTE | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text.push(QUOTE);
    text.into()
}

/// Returns the text on one line, with control characters escaped. Names and attributes may contain any character.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}
