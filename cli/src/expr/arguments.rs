//! The arguments of an operation: binding them to its parameters, and converting them to Rust types.

use std::ops::Range;
use std::slice;

use stridemap::{Axis, DType, Sections, Tensor};

use super::mistake::Mistake;

/// A value, and its position in the expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Argument {
    pub(super) value: Value,
    pub(super) span: Range<usize>,
}

/// The values that an expression can contain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Ellipsis,
    Number(isize),
    Word(String),
    List(Vec<Argument>),
}

/// An argument as passed: by position, or by the name of a parameter.
pub(super) struct Passed {
    pub(super) keyword: Option<Argument>,
    pub(super) argument: Argument,
}

/// Binds the passed arguments to the parameters of a signature, in order. `*rest` takes all remaining arguments,
/// either separate or as a list. `one|other` is a parameter with two names.
///
/// # Errors
/// The position of a superfluous argument, or `None` if an argument is missing or a positional one follows a keyword.
pub(super) fn bind(signature: &str, mut passed: Vec<Passed>) -> Result<Vec<Argument>, Option<Range<usize>>> {
    if !passed.is_sorted_by_key(|passed| passed.keyword.is_some()) {
        return Err(None);
    }
    let first_keyword = passed.iter().position(|passed| passed.keyword.is_some()).unwrap_or(passed.len());
    let mut keywords = passed.split_off(first_keyword);
    let mut positional = passed.into_iter().map(|passed| passed.argument);
    let implicit = |value| Argument { value, span: 0..0 };
    let mut bound = Vec::new();
    let parameters = signature.split_once('(').map_or("", |(_, rest)| rest.trim_end_matches(')'));
    for parameter in parameters.split(", ").filter(|parameter| !parameter.is_empty()) {
        let (parameter, default) =
            parameter.split_once('=').map_or((parameter, None), |(name, default)| (name, Some(default)));
        let names = parameter.trim_start_matches('*');
        let argument = if let Some(first) = positional.next() {
            if parameter.starts_with('*') && !matches!(first.value, Value::List(_)) {
                implicit(Value::List(std::iter::once(first).chain(positional.by_ref()).collect()))
            } else {
                first
            }
        } else if let Some(at) = keywords.iter().position(|passed| passed.is_for(names)) {
            keywords.remove(at).argument
        } else if let Some(default) = default {
            implicit(default.parse().map_or(Value::None, Value::Number))
        } else if parameter.starts_with('*') {
            implicit(Value::List(Vec::new()))
        } else {
            return Err(None);
        };
        bound.push(argument);
    }
    let left_over = positional.next().or_else(|| keywords.into_iter().find_map(|passed| passed.keyword));
    left_over.map_or(Ok(bound), |argument| Err(Some(argument.span)))
}

impl Passed {
    /// Returns whether the keyword is one of the names, which are separated by `|`.
    fn is_for(&self, names: &str) -> bool {
        let keyword = self.keyword.as_ref().map(|keyword| &keyword.value);
        names.split('|').any(|name| matches!(keyword, Some(Value::Word(word)) if word == name))
    }
}

/// The bound arguments of a call, read one at a time.
#[derive(Clone)]
pub(super) struct Arguments<'a>(slice::Iter<'a, Argument>);

type Result<T, E = Mistake> = std::result::Result<T, E>;

impl<'a> Arguments<'a> {
    pub(super) fn new(bound: &'a [Argument]) -> Self {
        Arguments(bound.iter())
    }

    pub(super) fn axis(&mut self) -> Result<Axis<'a>> {
        self.one("an axis: a number or a name", axis)
    }

    /// Reads a list of axes. `None` means all axes of the tensor.
    pub(super) fn axes(&mut self, x: &Tensor) -> Result<Vec<Axis<'a>>> {
        if self.skip_none() {
            return Ok((0..x.ndim()).map(Axis::from).collect());
        }
        self.each("an axis: a number or a name", axis)
    }

    pub(super) fn number(&mut self) -> Result<isize> {
        self.one("a number", number)
    }

    /// Reads a number of at least 0.
    pub(super) fn count(&mut self) -> Result<usize> {
        self.one("a number of at least 0", count)
    }

    pub(super) fn number_or_none(&mut self) -> Result<Option<isize>> {
        if self.skip_none() { Ok(None) } else { self.number().map(Some) }
    }

    pub(super) fn count_or_none(&mut self) -> Result<Option<usize>> {
        if self.skip_none() { Ok(None) } else { self.count().map(Some) }
    }

    pub(super) fn numbers(&mut self) -> Result<Vec<isize>> {
        self.each("a number", number)
    }

    pub(super) fn counts(&mut self) -> Result<Vec<usize>> {
        self.each("a number of at least 0", count)
    }

    pub(super) fn sections(&mut self) -> Result<Sections> {
        match self.0.as_slice() {
            [Argument { value: Value::List(_), .. }, ..] => self.numbers().map(Sections::List),
            _ => self.number().map(Sections::Number),
        }
    }

    pub(super) fn names(&mut self) -> Result<Vec<Option<&'a str>>> {
        self.each("the name of a dimension, an ellipsis (...) or None", name)
    }

    /// Reads a dtype, if the next argument is a single word.
    pub(super) fn dtype(&mut self) -> Result<Option<DType>> {
        let next = self.0.as_slice().first().map_or(&[][..], Argument::items);
        let is_word = matches!(next, [Argument { value: Value::Word(_), .. }]);
        if is_word { Ok(self.each("a dtype, such as float32", dtype)?.pop()) } else { Ok(None) }
    }

    fn skip_none(&mut self) -> bool {
        let mut rest = self.0.clone();
        let is_none = rest.next().is_none_or(|argument| argument.value == Value::None);
        if is_none {
            self.0 = rest;
        }
        is_none
    }

    fn one<T>(&mut self, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        let next = self.0.next();
        let read = next.and_then(|argument| read(&argument.value));
        read.ok_or_else(|| Mistake {
            span: next.map_or(0..0, |argument| argument.span.clone()),
            message: format!("expected {expected}"),
        })
    }

    /// Reads the items of a list, or a single item.
    fn each<T>(&mut self, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Vec<T>> {
        let mut items = Arguments::new(self.0.next().map_or(&[], Argument::items));
        (0..items.0.len()).map(|_| items.one(expected, &read)).collect()
    }
}

impl Argument {
    fn items(&self) -> &[Argument] {
        if let Value::List(items) = &self.value { items } else { slice::from_ref(self) }
    }
}

fn axis(value: &Value) -> Option<Axis<'_>> {
    match value {
        Value::Number(position) => Some(Axis::At(*position)),
        Value::Word(name) => Some(Axis::Named(name)),
        _ => None,
    }
}

fn number(value: &Value) -> Option<isize> {
    if let Value::Number(number) = value { Some(*number) } else { None }
}

fn count(value: &Value) -> Option<usize> {
    number(value)?.try_into().ok()
}

fn dtype(value: &Value) -> Option<DType> {
    if let Value::Word(name) = value { name.parse().ok() } else { None }
}

fn name(value: &Value) -> Option<Option<&str>> {
    match value {
        Value::Word(name) => Some(Some(name)),
        Value::Ellipsis => Some(Some("...")),
        Value::None => Some(None),
        _ => None,
    }
}
