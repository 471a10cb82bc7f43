//! Expressions: a name, and the view of its tensor that is meant.
//!
//! ```text
//! encoder.weight[0, ::2].t()      'odd [name]'[..., None]
//! ```
//! A bare name goes on to the first `[` or `.word(`; any other name is quoted.

mod parse;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::str::FromStr;

use stridemap::{Index, Tensor};

use crate::error::Error;

/// The name of a tensor, and the operations that make the view from it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expr {
    pub(crate) name: String,
    operations: Vec<Operation>,
}

/// One view operation, by PyTorch's name and argument order.
#[derive(Debug, PartialEq, Eq)]
enum Operation {
    Index(Vec<Index>),
    T,
    Transpose(isize, isize),
    Permute(Vec<isize>),
    View(Vec<isize>),
    Flip(Vec<isize>),
    Select(isize, isize),
    Narrow(isize, isize, usize),
    Slice { axis: isize, start: Option<isize>, end: Option<isize>, step: isize },
}

impl Expr {
    /// The view that the expression means, of the tensor that has its name.
    pub(crate) fn apply(&self, tensor: Tensor) -> stridemap::Result<Tensor> {
        self.operations.iter().try_fold(tensor, |tensor, operation| operation.apply(&tensor))
    }
}

impl Operation {
    fn apply(&self, tensor: &Tensor) -> stridemap::Result<Tensor> {
        match self {
            Operation::Index(places) => tensor.index(places),
            Operation::T => tensor.t(),
            Operation::Transpose(axis0, axis1) => tensor.transpose(*axis0, *axis1),
            Operation::Permute(axes) => tensor.permute(axes),
            Operation::View(size) => tensor.view(size),
            Operation::Flip(axes) => tensor.flip(axes),
            Operation::Select(axis, index) => tensor.select(*axis, *index),
            Operation::Narrow(axis, start, length) => tensor.narrow(*axis, *start, *length),
            Operation::Slice { axis, start, end, step } => tensor.slice(*axis, *start, *end, *step),
        }
    }
}

impl FromStr for Expr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse::parse(text)
            .map_err(|e| Error::Refused(format!("expression, column {}: {}", e.column, e.message)))
    }
}

/// The name as it stands in an expression: in quotes when it would not read back, or not stay on its line.
pub(crate) fn quoted(name: &str) -> Cow<'_, str> {
    let is_bare = !name.is_empty()
        && !name.starts_with(parse::QUOTE)
        && parse::bare_name(name) == name
        && !name.contains(char::is_control);
    if is_bare {
        return name.into();
    }
    let mut text = String::from(parse::QUOTE);
    for c in name.chars() {
        match c {
            parse::QUOTE | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text.push(parse::QUOTE);
    text.into()
}
