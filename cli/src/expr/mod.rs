//! Expressions: a tensor's name, followed by operations that select a view.
//!
//! ```text
//! encoder.weight[0, ::2].t()      'odd [name]'[..., None]      images.refine_names(N, ...).chunk(3, dim=N)[1]
//! ```
//! If the whole text is the name of a tensor, it means that tensor. In an expression, a bare name ends at the first `[`
//! or `.word(`; a name that contains one of these must be quoted.

mod arguments;
mod mistake;
mod operations;
mod parse;
#[cfg(test)]
mod tests;

use std::ops::Range;

use stridemap::{ErrorKind, Index, Tensor};

use crate::error::{Error, Result};
use crate::names::{Named, prefix_hint};
use crate::ui::{counted, examples, message};
use arguments::{Argument, Arguments};
use mistake::Mistake;
use operations::{Call, Operation};

pub(crate) use parse::{QUOTE, bare_name};

/// A parsed expression: the name of a tensor, and the steps that lead to a view of it.
#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) name: String,
    steps: Vec<Step>,
    text: String,
}

/// An operation on a tensor, and its position in the expression.
#[derive(Debug)]
struct Step {
    action: Action,
    span: Range<usize>,
}

#[derive(Debug)]
enum Action {
    Index(Vec<Index>),
    Call(&'static Operation, Vec<Argument>, Option<Pick>),
}

/// The subscript that picks one part of a list.
#[derive(Debug)]
struct Pick {
    index: isize,
    span: Range<usize>,
}

/// Returns the help of a command that takes an expression.
pub(crate) fn help(commands: &[&str]) -> String {
    format!(
        "\
EXPR is a NAME, then any of
  [0:10, ::-2, -1, ..., None]
{}
An axis is a number or a name. An operation that returns a list needs an index: .chunk(3)[-1]
A text that is the name of a tensor is used as this name. Quote a name before operations if it contains \"[\" or \
\".word(\": 'odd [name]'[0]. Write -- before a name that begins with -.

{}",
        operations::help(),
        examples(commands)
    )
}

/// Whether elements may be copied if strides cannot express the result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    Allowed,
    Refused,
}

/// Returns the name of a tensor, and the view of it that a text describes.
///
/// A text that is the name of a tensor is used as this name, even if it is also an expression for a view of another
/// tensor. A note then says so.
pub(crate) fn view(text: &str, tensors: &impl Named, copies: Copies) -> Result<(String, Tensor)> {
    if !tensors.contains(text)? {
        if text.is_empty() {
            return Err(Error::Refused("the expression is empty".to_owned()));
        }
        let expr = Expr::parse(text)?.split_properties(tensors)?;
        let tensor = match tensors.load(&expr.name) {
            Err(e) if e.kind() == ErrorKind::NameNotFound => {
                return Err(prefix_hint(&expr.name, tensors)?.map_or(e.into(), Error::Refused));
            }
            tensor => tensor?,
        };
        return Ok((expr.name.clone(), expr.apply(tensor, copies)?));
    }
    note_name(text, tensors)?;
    Ok((text.to_owned(), tensors.load(text)?))
}

/// Says that a text which is the name of a tensor is used as this name, if it is also an expression for a view of another
/// tensor.
pub(crate) fn note_name(text: &str, tensors: &impl Named) -> Result<()> {
    if tensors.contains(text)?
        && let Ok(expr) = Expr::parse(text)
        && let expr = expr.split_properties(tensors)?
        && expr.name != text
        && tensors.contains(&expr.name)?
    {
        message(&expr.note_of_name());
    }
    Ok(())
}

/// Returns whether the tensor exists of which an expression is a view.
pub(crate) fn has_tensor(text: &str, tensors: &impl Named) -> Result<bool> {
    if tensors.contains(text)? {
        return Ok(true);
    }
    Ok(tensors.contains(&Expr::parse(text)?.split_properties(tensors)?.name)?)
}

/// Returns whether the text is an operation on a tensor, and not the name of one.
pub(crate) fn is_operation(text: &str, tensors: &impl Named) -> Result<bool> {
    let Ok(expr) = Expr::parse(text) else { return Ok(false) };
    Ok(!expr.steps.is_empty() && tensors.contains(&expr.name)? && !tensors.contains(text)?)
}

/// Returns the name that a text in quotes stands for, or `None` for any other text.
pub(crate) fn unquoted(text: &str) -> Option<String> {
    let expr = parse::parse(text).ok().filter(|expr| text.starts_with(QUOTE) && expr.steps.is_empty())?;
    Some(expr.name)
}

impl Expr {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        parse::parse(text).map_err(|mistake| in_expression(mistake, text))
    }

    /// Splits properties off the end of a bare name: `x.T` becomes the property `T` of the tensor `x`. A name is not
    /// split if operations follow it and a tensor has this name. A name that is the whole text is not looked up here,
    /// because the caller has done so.
    fn split_properties(self, tensors: &impl Named) -> Result<Self> {
        let is_name = self.name != self.text && tensors.contains(&self.name)?;
        if is_name || self.text.starts_with(QUOTE) {
            return Ok(self);
        }
        let mut name = self.name.as_str();
        while let Some(shorter) = operations::without_property(name) {
            name = shorter;
            if tensors.contains(name)? {
                return parse::parse_after(&self.text, name.len()).map_err(|e| in_expression(e, &self.text));
            }
        }
        Ok(self)
    }

    /// Returns a note that the text is used as a name, and how to write the expression that it could also be.
    fn note_of_name(&self) -> String {
        let Expr { name, text, .. } = self;
        let note = format!("note: {text:?} is used as the name of a tensor, not as a view of {name:?}");
        match text.strip_prefix(name) {
            Some(rest) => format!("{note}; for the view, quote the name: \"'{name}'{rest}\""),
            None => note,
        }
    }

    /// Applies the steps to the tensor.
    fn apply(&self, tensor: Tensor, copies: Copies) -> Result<Tensor> {
        let mut steps = self.steps.iter();
        steps
            .try_fold(tensor, |tensor, step| step.apply(&tensor, copies))
            .map_err(|mistake| mistake.with_text(&self.text))
    }
}

impl Step {
    fn apply(&self, tensor: &Tensor, copies: Copies) -> Result<Tensor, Mistake> {
        let mistake_here = |message: String| Mistake { span: self.span.clone(), message };
        let (operation, arguments, pick) = match &self.action {
            Action::Index(places) => return tensor.index(places).map_err(|e| mistake_here(e.to_string())),
            Action::Call(operation, arguments, pick) => (operation, Arguments::new(arguments), pick),
        };
        let name = operation.name();
        let wrong = |mistake: Mistake| mistake.context(operation.signature);
        let refused = |e: stridemap::Error| match e.kind() {
            ErrorKind::NeedsCopy if copies == Copies::Refused => mistake_here(copy_message(name, tensor)),
            _ => mistake_here(e.to_string()),
        };
        if let (Call::OrCopy(_, would_copy), Copies::Refused) = (&operation.call, copies)
            && would_copy(tensor, &mut arguments.clone()).map_err(wrong)?
        {
            return Err(mistake_here(copy_message(name, tensor)));
        }
        match operation.call {
            Call::View(view) | Call::OrCopy(view, _) => {
                view(tensor, &mut arguments.clone()).map_err(wrong)?.map_err(refused)
            }
            Call::Parts(parts) => {
                let parts = parts(tensor, &mut arguments.clone()).map_err(wrong)?.map_err(refused)?;
                let list = list_of(&parts);
                match pick {
                    Some(pick) => pick.take_from(name, parts),
                    None => Err(mistake_here(format!("{name} returns {list}; pick one with a subscript"))),
                }
            }
        }
    }
}

impl Pick {
    fn take_from(&self, name: &str, mut parts: Vec<Tensor>) -> Result<Tensor, Mistake> {
        let from_start =
            if self.index < 0 { self.index.checked_add_unsigned(parts.len()) } else { Some(self.index) };
        match from_start.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < parts.len()) {
            Some(at) => Ok(parts.swap_remove(at)),
            None => Err(Mistake {
                span: self.span.clone(),
                message: format!("index {} is out of range: {name} returns {}", self.index, list_of(&parts)),
            }),
        }
    }
}

fn list_of(parts: &[Tensor]) -> String {
    format!("a list of {}", counted(parts.len() as u64, "view"))
}

fn copy_message(name: &str, tensor: &Tensor) -> String {
    let (size, stride) = (tensor.size(), tensor.stride());
    format!("a view copies no data, but {name} of size {size:?} with stride {stride:?} needs a copy")
}

fn in_expression(mistake: Mistake, text: &str) -> Error {
    let column = text[..mistake.span.start].chars().count() + 1;
    mistake.context(format_args!("expression, column {column}")).with_text(text)
}
