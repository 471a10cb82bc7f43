//! The parser of expressions: one pass over the text, without recursion.

use std::fmt;

use stridemap::Index;

use super::arguments::{Argument, Passed, Value, bind};
use super::mistake::Mistake;
use super::operations::{Call, Operation, suggestion};
use super::{Action, Expr, Pick, Step};

/// Begins and ends a quoted name.
pub(crate) const QUOTE: char = '\'';

type Result<T> = std::result::Result<T, Mistake>;

pub(super) fn parse(text: &str) -> Result<Expr> {
    let mut cursor = Cursor { text, rest: text };
    let name = cursor.name()?;
    cursor.expr(name)
}

/// Parses an expression whose bare name is the first `name_bytes` bytes of the text.
pub(super) fn parse_after(text: &str, name_bytes: usize) -> Result<Expr> {
    let (name, rest) = text.split_at(name_bytes);
    Cursor { text, rest }.expr(name.to_owned())
}

/// Returns the part of `text` before the first `[` or `.word(`.
pub(crate) fn bare_name(text: &str) -> &str {
    if !text.contains(['[', '(']) {
        return text;
    }
    let is_end = |(at, c): &(usize, char)| *c == '[' || *c == '.' && is_call(&text[*at + 1..]);
    text.char_indices().find(is_end).map_or(text, |(at, _)| &text[..at])
}

/// Returns whether the text begins with `word(`.
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
    /// Parses the steps that follow the name.
    fn expr(mut self, name: String) -> Result<Expr> {
        let mut steps = Vec::new();
        while !self.is_at_end() {
            steps.push(self.step()?);
        }
        Ok(Expr { name, steps, text: self.text.to_owned() })
    }

    /// Returns the number of bytes parsed so far.
    fn at(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    /// Returns a mistake at the next character, or at the end: `what` was expected there.
    fn expected(&self, what: impl fmt::Display) -> Mistake {
        let next = self.rest.chars().next();
        let found = next.map_or("the end".to_owned(), |c| format!("{c:?}"));
        let end = self.at() + next.map_or(0, char::len_utf8);
        Mistake { span: self.at()..end, message: format!("expected {what}, found {found}") }
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest.is_empty()
    }

    /// Skips the token if it comes next. Returns whether it did.
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
            return self.quoted(QUOTE);
        }
        match bare_name(self.rest) {
            "" => Err(self.expected("a name")),
            name => Ok(self.take(name).to_owned()),
        }
    }

    /// Parses up to the closing quote. A quote in the text is doubled, or escaped by a backslash.
    fn quoted(&mut self, quote: char) -> Result<String> {
        let mut name = String::new();
        loop {
            let mut chars = self.rest.chars();
            let c = match chars.next() {
                None => return Err(self.expected("a closing quote")),
                Some(c) if c == quote && !chars.as_str().starts_with(quote) => {
                    self.rest = chars.as_str();
                    return Ok(name);
                }
                Some(c) if c == quote => chars.next(),
                Some('\\') => match chars.next() {
                    Some(c @ (QUOTE | '"' | '\\')) => Some(c),
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

    fn step(&mut self) -> Result<Step> {
        let mut start = self.at();
        let mut action = if self.eat("[") {
            Action::Index(self.list("]", Self::subscript_item)?)
        } else if self.eat(".") {
            start = self.at();
            self.call()?
        } else {
            return Err(self.expected("\"[\", \".\" or the end"));
        };
        let span = start..self.at();
        if let Action::Call(Operation { call: Call::Parts(_), .. }, _, pick) = &mut action {
            *pick = self.pick()?;
        }
        Ok(Step { action, span })
    }

    fn call(&mut self) -> Result<Action> {
        let start = self.at();
        let word = self.take(word(self.rest));
        let named = start..self.at();
        if word.is_empty() {
            return Err(self.expected("the name of an operation"));
        }
        let operation = Operation::named(word).ok_or_else(|| Mistake {
            span: named.clone(),
            message: format!("unknown operation {word:?}; {}", suggestion(word)),
        })?;
        let passed = if self.eat("(") {
            self.items(")", Self::passed)?
        } else if operation.is_property() {
            Vec::new()
        } else {
            return Err(self.expected("\"(\""));
        };
        let arguments = bind(operation.signature, passed).map_err(|left_over| Mistake {
            span: left_over.unwrap_or(start..self.at()),
            message: format!("expected {}", operation.signature),
        })?;
        Ok(Action::Call(operation, arguments, None))
    }

    /// Parses the subscript that picks one part of a list.
    fn pick(&mut self) -> Result<Option<Pick>> {
        self.skip_blanks();
        let start = self.at();
        if !self.eat("[") {
            return Ok(None);
        }
        let items = self.list("]", Self::subscript_item)?;
        let span = start..self.at();
        match items[..] {
            [Index::At(index)] => Ok(Some(Pick { index, span })),
            _ => Err(Mistake { span, message: "expected one number, which selects one of the views".into() }),
        }
    }

    /// Parses an argument with its keyword, if it has one.
    fn passed(&mut self) -> Result<Passed> {
        self.skip_blanks();
        let (start, word) = (self.at(), word(self.rest));
        let mut keyword = None;
        if !word.is_empty() && self.rest[word.len()..].trim_start().starts_with('=') {
            let value = Value::Word(self.take(word).to_owned());
            keyword = Some(Argument { value, span: start..self.at() });
            self.eat("=");
        }
        Ok(Passed { keyword, argument: self.argument()? })
    }

    /// Parses a value, or a list of values in brackets. As in Python, the comma makes `(1,)` a tuple.
    fn argument(&mut self) -> Result<Argument> {
        self.skip_blanks();
        let start = self.at();
        let value = if self.eat("[") {
            Value::List(self.items("]", Self::item)?)
        } else if self.eat("(") {
            let mut items = self.items(")", Self::item)?;
            match items.pop() {
                Some(only) if items.is_empty() && !self.text[start..self.at()].contains(',') => only.value,
                last => {
                    items.extend(last);
                    Value::List(items)
                }
            }
        } else {
            self.value()?
        };
        Ok(Argument { value, span: start..self.at() })
    }

    fn item(&mut self) -> Result<Argument> {
        self.skip_blanks();
        let start = self.at();
        Ok(Argument { value: self.value()?, span: start..self.at() })
    }

    /// Parses a number, a bare or quoted word, `...` or `None`.
    fn value(&mut self) -> Result<Value> {
        if self.eat("...") {
            return Ok(Value::Ellipsis);
        }
        for quote in [QUOTE, '"'] {
            if let Some(after) = self.rest.strip_prefix(quote) {
                self.rest = after;
                return self.quoted(quote).map(Value::Word);
            }
        }
        // PyTorch prints dtypes with this prefix.
        self.rest = self.rest.strip_prefix("torch.").unwrap_or(self.rest);
        match self.take(word(self.rest)) {
            "" => self.integer()?.map(Value::Number).ok_or_else(|| self.expected("a number or a name")),
            "None" => Ok(Value::None),
            word => Ok(Value::Word(word.to_owned())),
        }
    }

    /// Parses zero or more comma-separated items, and the closing bracket.
    fn items<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        if self.eat(close) { Ok(Vec::new()) } else { self.list(close, item) }
    }

    /// Parses one or more comma-separated items, and the closing bracket.
    fn list<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        loop {
            items.push(item(self)?);
            let has_comma = self.eat(",");
            if self.eat(close) {
                return Ok(items);
            }
            if !has_comma {
                return Err(self.expected(format_args!("\",\" or {close:?}")));
            }
        }
    }

    /// Parses one item of a subscript.
    fn subscript_item(&mut self) -> Result<Index> {
        if self.eat("...") {
            return Ok(Index::Ellipsis);
        }
        if self.eat("None") {
            return Ok(Index::NewAxis);
        }
        let start = self.integer()?;
        if !self.eat(":") {
            return start.map(Index::At).ok_or_else(|| {
                self.expected("an index: a number, a slice such as 0:10:2, an ellipsis (...) or None")
            });
        }
        let end = self.integer()?;
        let step = if self.eat(":") { self.integer()? } else { None };
        Ok(Index::Slice { start, end, step: step.unwrap_or(1) })
    }

    /// Parses a number, if one is next.
    fn integer(&mut self) -> Result<Option<isize>> {
        self.skip_blanks();
        let digits = self.rest.strip_prefix('-').unwrap_or(self.rest);
        let after = digits.trim_start_matches(|c: char| c.is_ascii_digit());
        if after.len() == digits.len() {
            return Ok(None);
        }
        let number = &self.rest[..self.rest.len() - after.len()];
        let value = number.parse().map_err(|_| Mistake {
            span: self.at()..self.at() + number.len(),
            message: format!("{number} does not fit in 64 bits"),
        })?;
        self.take(number);
        Ok(Some(value))
    }
}
