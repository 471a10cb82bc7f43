//! A mistake in an expression, and its position.

use std::fmt;
use std::ops::Range;

use crate::error::Error;
use crate::names::one_line;

/// The maximum number of characters that are shown of each part: the text before the mistake, the mistake, and the text
/// after it.
const SHOWN_CHARS: usize = 40;

/// A mistake: the message, and its byte range in the text.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) span: Range<usize>,
    pub(super) message: String,
}

impl Mistake {
    /// Prefixes the message with what was being parsed or called.
    pub(super) fn context(self, what: impl fmt::Display) -> Self {
        Mistake { message: format!("{what}: {}", self.message), ..self }
    }

    /// Returns an error with the message and, below it, the text with the mistake underlined.
    pub(super) fn with_text(self, text: &str) -> Error {
        let Range { start, end } = self.span;
        let before = last_chars(&one_line(&text[..start]));
        let (part, after) = (first_chars(&one_line(&text[start..end])), first_chars(&one_line(&text[end..])));
        let (indent, width) = (before.chars().count(), part.chars().count().max(1));
        let mark = "^".repeat(width);
        Error::Refused(format!("{}\n{before}{part}{after}\n{:indent$}{mark}", self.message, ""))
    }
}

fn first_chars(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_owned(),
    }
}

fn last_chars(text: &str) -> String {
    match text.char_indices().nth_back(SHOWN_CHARS) {
        Some((cut, c)) => format!("…{}", &text[cut + c.len_utf8()..]),
        None => text.to_owned(),
    }
}
