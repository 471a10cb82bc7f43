//! What is wrong with an expression, and where.

use std::fmt;
use std::ops::Range;

use crate::error::Error;
use crate::output::one_line;

/// How much of an expression is shown before the part that is wrong, of it, and after it.
const SHOWN_CHARS: usize = 40;

/// What is wrong, and which bytes of the text say it.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) span: Range<usize>,
    pub(super) message: String,
}

impl Mistake {
    /// Puts what was being read before the message.
    pub(super) fn context(self, what: impl fmt::Display) -> Self {
        Mistake { message: format!("{what}: {}", self.message), ..self }
    }

    /// The message, and under it the text with a mark under the part that is wrong.
    pub(super) fn in_text(self, text: &str) -> Error {
        let Range { start, end } = self.span;
        let before = last(&one_line(&text[..start]));
        let (part, after) = (first(&one_line(&text[start..end])), first(&one_line(&text[end..])));
        let (indent, width) = (before.chars().count(), part.chars().count().max(1));
        let mark = "^".repeat(width);
        Error::Refused(format!("{}\n{before}{part}{after}\n{:indent$}{mark}", self.message, ""))
    }
}

fn first(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_owned(),
    }
}

fn last(text: &str) -> String {
    match text.char_indices().nth_back(SHOWN_CHARS) {
        Some((cut, c)) => format!("…{}", &text[cut + c.len_utf8()..]),
        None => text.to_owned(),
    }
}
