//! The grammar: one pass over the text, without recursion.

use std::fmt;

use stridemap::Index;

use super::{Expr, Operation};

/// Begins and ends a quoted name.
pub(super) const QUOTE: char = '\'';

/// The operations that can be called, as they are written.
const SIGNATURES: [&str; 8] = [
    "t()",
    "transpose(axis, axis)",
    "permute(axis, ...)",
    "view(size, ...)",
    "flip(axis, ...)",
    "select(axis, index)",
    "narrow(axis, start, length)",
    "slice(axis, start, end, step)",
];

/// What is wrong, and at which character of the text, counted from 1.
#[derive(Debug)]
pub(super) struct ParseError {
    pub(super) column: usize,
    pub(super) message: String,
}

type Result<T> = std::result::Result<T, ParseError>;

pub(super) fn parse(text: &str) -> Result<Expr> {
    let mut cursor = Cursor { text, rest: text };
    let name = cursor.name()?;
    let mut operations = Vec::new();
    while !cursor.is_at_end() {
        operations.push(cursor.operation()?);
    }
    Ok(Expr { name, operations })
}

/// The part of `text` before the first `[` or `.word(`.
pub(super) fn bare_name(text: &str) -> &str {
    let is_end = |(at, c): &(usize, char)| *c == '[' || *c == '.' && is_call(&text[*at + 1..]);
    text.char_indices().find(is_end).map_or(text, |(at, _)| &text[..at])
}

/// Whether the text begins with `word(`.
fn is_call(text: &str) -> bool {
    let word = word(text);
    !word.is_empty() && text[word.len()..].starts_with('(')
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    if text.starts_with(|c: char| c.is_ascii_digit()) { "" } else { &text[..end] }
}

struct Cursor<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// An error at the next character.
    fn error(&self, message: impl Into<String>) -> ParseError {
        let before = &self.text[..self.text.len() - self.rest.len()];
        ParseError { column: before.chars().count() + 1, message: message.into() }
    }

    fn expected(&self, what: impl fmt::Display) -> ParseError {
        let found = self.rest.chars().next().map_or("the end".to_owned(), |c| format!("{c:?}"));
        self.error(format!("expected {what}, found {found}"))
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest.is_empty()
    }

    /// Steps over the token, if it is next.
    fn eat(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let after = self.rest.strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn take(&mut self, part: &'a str) -> &'a str {
        self.rest = &self.rest[part.len()..];
        part
    }

    fn name(&mut self) -> Result<String> {
        if let Some(after) = self.rest.strip_prefix(QUOTE) {
            self.rest = after;
            return self.quoted_name();
        }
        match bare_name(self.rest) {
            "" => Err(self.expected("a name")),
            name => Ok(self.take(name).to_owned()),
        }
    }

    /// What stands before the closing quote. A quote in the name is doubled, or has a backslash before it.
    fn quoted_name(&mut self) -> Result<String> {
        let mut name = String::new();
        loop {
            let mut chars = self.rest.chars();
            let c = match chars.next() {
                None => return Err(self.expected("a quote that ends the name")),
                Some(QUOTE) if !chars.as_str().starts_with(QUOTE) => {
                    self.rest = chars.as_str();
                    return Ok(name);
                }
                Some(QUOTE) => chars.next(),
                Some('\\') => match chars.next() {
                    Some(c @ (QUOTE | '\\')) => Some(c),
                    Some('t') => Some('\t'),
                    Some('n') => Some('\n'),
                    Some('r') => Some('\r'),
                    Some('u') => {
                        let digits = chars.as_str().strip_prefix('{').and_then(|text| text.split_once('}'));
                        digits.and_then(|(digits, after)| {
                            chars = after.chars();
                            u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)
                        })
                    }
                    _ => None,
                },
                c => c,
            };
            name.push(c.ok_or_else(|| self.expected(r"one of \' \\ \t \n \r \u{...}"))?);
            self.rest = chars.as_str();
        }
    }

    fn operation(&mut self) -> Result<Operation> {
        if self.eat("[") {
            return Ok(Operation::Index(self.list("]", Self::place)?));
        }
        if !self.eat(".") {
            return Err(self.expected("\"[\", \".\" or the end"));
        }
        let at_word = Cursor { ..*self };
        let word = self.take(word(self.rest));
        let signature = SIGNATURES.iter().find(|signature| signature.split('(').next() == Some(word));
        let Some(signature) = signature else {
            let known = SIGNATURES.join(", ");
            return Err(at_word.error(format!(
                "unknown operation {word:?}; there are {known}; a name that looks like one is quoted: 'odd.name()'"
            )));
        };
        if !self.eat("(") {
            return Err(self.expected("\"(\""));
        }
        let is_list = self.eat("[");
        let arguments = self.arguments(if is_list { "]" } else { ")" })?;
        if is_list && !self.eat(")") {
            return Err(self.expected("\")\""));
        }
        operation(word, is_list, &arguments).ok_or_else(|| at_word.error(format!("expected {signature}")))
    }

    fn arguments(&mut self, close: &str) -> Result<Vec<Option<isize>>> {
        if self.eat(close) { Ok(Vec::new()) } else { self.list(close, Self::argument) }
    }

    /// Items with commas between them, at least one, and the closing bracket.
    fn list<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        loop {
            items.push(item(self)?);
            let may_go_on = self.eat(",");
            if self.eat(close) {
                return Ok(items);
            }
            if !may_go_on {
                return Err(self.expected(format_args!("\",\" or {close:?}")));
            }
        }
    }

    /// One place of a subscript.
    fn place(&mut self) -> Result<Index> {
        if self.eat("...") {
            return Ok(Index::Ellipsis);
        }
        if self.eat("None") {
            return Ok(Index::NewAxis);
        }
        let start = self.integer()?;
        if !self.eat(":") {
            return start.map(Index::At).ok_or_else(|| self.expected("an index (1, 0:10:2, ..., None)"));
        }
        let end = self.integer()?;
        let step = if self.eat(":") { self.integer()? } else { None };
        Ok(Index::Slice { start, end, step: step.unwrap_or(1) })
    }

    /// A number, or `None`.
    fn argument(&mut self) -> Result<Option<isize>> {
        if self.eat("None") {
            return Ok(None);
        }
        self.integer()?.map(Some).ok_or_else(|| self.expected("a number"))
    }

    /// The number that is next, if one is.
    fn integer(&mut self) -> Result<Option<isize>> {
        self.skip_blanks();
        let digits = self.rest.strip_prefix('-').unwrap_or(self.rest);
        let after = digits.trim_start_matches(|c: char| c.is_ascii_digit());
        if after.len() == digits.len() {
            return Ok(None);
        }
        let number = &self.rest[..self.rest.len() - after.len()];
        let value = number.parse().map_err(|_| self.error(format!("{number} does not fit in 64 bits")))?;
        self.take(number);
        Ok(Some(value))
    }
}

/// The operation of this name, when the arguments fit it.
fn operation(name: &str, is_list: bool, arguments: &[Option<isize>]) -> Option<Operation> {
    let numbers = || arguments.iter().copied().collect::<Option<Vec<isize>>>();
    match (name, is_list, arguments) {
        ("permute", _, _) => Some(Operation::Permute(numbers()?)),
        ("view", _, _) => Some(Operation::View(numbers()?)),
        ("flip", _, _) => Some(Operation::Flip(numbers()?)),
        ("t", false, []) => Some(Operation::T),
        ("transpose", false, &[Some(axis0), Some(axis1)]) => Some(Operation::Transpose(axis0, axis1)),
        ("select", false, &[Some(axis), Some(index)]) => Some(Operation::Select(axis, index)),
        ("narrow", false, &[Some(axis), Some(start), Some(length)]) => {
            Some(Operation::Narrow(axis, start, length.try_into().ok()?))
        }
        ("slice", false, &[Some(axis), start, end, step]) => {
            Some(Operation::Slice { axis, start, end, step: step.unwrap_or(1) })
        }
        _ => None,
    }
}
