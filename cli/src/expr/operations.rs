//! The view operations of expressions: the signature of each, and the call that it makes.

use std::cmp::Reverse;
use std::fmt;

use stridemap::{ErrorKind, Result as LibraryResult, Tensor};

use super::arguments::Arguments;
use super::mistake::Mistake;
use crate::ui::help_width;

/// A view operation of the library. Its parameters have the names and defaults that PyTorch or NumPy gives them.
pub(super) struct Operation {
    /// The signature, as in Python. A signature without parentheses is that of a property, which has no arguments.
    pub(super) signature: &'static str,
    pub(super) call: Call,
}

/// The result of a call. The outer error is a wrong argument, the inner one an error of the library.
type CallResult<T> = Result<LibraryResult<T>, Mistake>;
type Make<T> = fn(&Tensor, &mut Arguments<'_>) -> CallResult<T>;
type WouldCopy = fn(&Tensor, &mut Arguments<'_>) -> Result<bool, Mistake>;

pub(super) enum Call {
    View(Make<Tensor>),
    /// Copies if strides cannot express the result. The second function returns whether that is the case, without
    /// copying.
    OrCopy(Make<Tensor>, WouldCopy),
    Parts(Make<Vec<Tensor>>),
}

pub(super) static OPERATIONS: &[Operation] = &[
    view("select(dim, index)", |x, a| Ok(x.select(a.axis()?, a.number()?))),
    view("narrow(dim, start, length)", |x, a| Ok(x.narrow(a.axis()?, a.number()?, a.count()?))),
    view("slice(dim=0, start=None, end=None, step=1)", |x, a| {
        Ok(x.slice(a.axis()?, a.number_or_none()?, a.number_or_none()?, a.number_or_none()?.unwrap_or(1)))
    }),
    view("flip(*dims)", |x, a| Ok(x.flip(a.axes(x)?))),
    view("diagonal(offset=0, dim1=0, dim2=1)", |x, a| Ok(x.diagonal(a.number()?, a.axis()?, a.axis()?))),
    view("transpose(dim0, dim1)", |x, a| Ok(x.transpose(a.axis()?, a.axis()?))),
    view("t()", |x, _| Ok(x.t())),
    view("T", |x, _| Ok(x.t())),
    view("mT", |x, _| Ok(if x.ndim() == 0 { Ok(x.clone()) } else { x.transpose(-2, -1) })),
    view("permute(*dims)", |x, a| Ok(x.permute(a.axes(x)?))),
    view("movedim(source, destination)", |x, a| Ok(x.movedim(a.axes(x)?, a.axes(x)?))),
    view("squeeze(*dim=None)", |x, a| Ok(x.squeeze(a.axes(x)?))),
    view("unsqueeze(dim)", |x, a| Ok(x.unsqueeze(a.number()?))),
    view("expand(*size)", |x, a| Ok(x.expand(&a.numbers()?))),
    view("view(*size)", |x, a| {
        Ok(match a.dtype()? {
            Some(dtype) => x.view_dtype(dtype),
            None => x.view(&a.numbers()?),
        })
    }),
    or_copy(
        "reshape(*shape)",
        |x, a| Ok(x.reshape(&a.numbers()?)),
        |x, a| Ok(needs_copy(&x.view(&a.numbers()?))),
    ),
    or_copy(
        "flatten(start_dim=0, end_dim=-1)",
        |x, a| Ok(x.flatten(a.axis()?, a.axis()?)),
        |x, a| {
            let (start, end) = (a.axis()?, a.axis()?);
            let flat = repeated_element(x).and_then(|repeated| repeated.flatten(start, end));
            Ok(flat.is_ok_and(|flat| needs_copy(&x.view(flat.size()))))
        },
    ),
    or_copy("contiguous()", |x, _| Ok(x.contiguous()), |x, _| Ok(!x.is_contiguous())),
    view("unflatten(dim, sizes)", |x, a| Ok(x.unflatten(a.axis()?, &a.numbers()?))),
    view("unfold(dimension, size, step)", |x, a| Ok(x.unfold(a.axis()?, a.count()?, a.count()?))),
    view("sliding_window_view(window_shape, axis=None)", |x, a| {
        Ok(x.sliding_window_view(&a.counts()?, a.axes(x)?))
    }),
    view("as_strided(size, stride, storage_offset=None)", |x, a| {
        Ok(x.as_strided(&a.counts()?, &a.numbers()?, a.count_or_none()?))
    }),
    parts("chunk(chunks, dim=0)", |x, a| Ok(x.chunk(a.count()?, a.axis()?))),
    parts("split(split_size, dim=0)", |x, a| Ok(x.split(a.sections()?, a.axis()?))),
    parts("tensor_split(sections|indices, dim=0)", |x, a| Ok(x.tensor_split(a.sections()?, a.axis()?))),
    parts("unbind(dim=0)", |x, a| Ok(x.unbind(a.axis()?))),
    view("real", |x, _| Ok(if x.dtype().is_complex() { part(x, 0) } else { Ok(x.clone()) })),
    view("imag", |x, _| Ok(part(x, 1))),
    view("view_as_real()", |x, _| Ok(x.view_as_real())),
    view("view_as_complex()", |x, _| Ok(x.view_as_complex())),
    view("refine_names(*names)", |x, a| Ok(x.refine_names(&a.names()?))),
    view("rename(*names)", |x, a| Ok(x.rename(&a.names()?))),
    view("align_to(*names)", |x, a| Ok(x.align_to(&a.names()?))),
];

/// Views one part of complex numbers: 0 is the real part, 1 the imaginary part.
fn part(x: &Tensor, part: usize) -> LibraryResult<Tensor> {
    x.view_as_real()?.select(-1, part)
}

/// Other names of operations, in PyTorch and NumPy. They take the same arguments.
pub(super) static ALIASES: &[(&str, &str)] = &[
    ("swapaxes", "transpose"),
    ("swapdims", "transpose"),
    ("moveaxis", "movedim"),
    ("broadcast_to", "expand"),
    ("ravel", "flatten"),
];

const fn view(signature: &'static str, view: Make<Tensor>) -> Operation {
    Operation { signature, call: Call::View(view) }
}

const fn or_copy(signature: &'static str, view: Make<Tensor>, would_copy: WouldCopy) -> Operation {
    Operation { signature, call: Call::OrCopy(view, would_copy) }
}

const fn parts(signature: &'static str, parts: Make<Vec<Tensor>>) -> Operation {
    Operation { signature, call: Call::Parts(parts) }
}

fn needs_copy(view: &LibraryResult<Tensor>) -> bool {
    view.as_ref().is_err_and(|e| e.kind() == ErrorKind::NeedsCopy)
}

/// Returns a tensor of the same size and dimension names that repeats a single element, so that flattening it never
/// needs a copy.
fn repeated_element(x: &Tensor) -> LibraryResult<Tensor> {
    let element = Tensor::zeros(x.dtype(), &[1])?;
    element.as_strided(x.size(), vec![0; x.size().len()], 0)?.refine_names(&x.names())
}

impl Operation {
    pub(super) fn name(&self) -> &'static str {
        self.signature.split('(').next().unwrap_or_default()
    }

    pub(super) fn is_property(&self) -> bool {
        !self.signature.contains('(')
    }

    pub(super) fn named(name: &str) -> Option<&'static Operation> {
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, meaning)| meaning);
        OPERATIONS.iter().find(|operation| operation.name() == name)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.signature)
    }
}

/// Returns a name without the property at its end, or `None` if it does not end with one.
pub(super) fn without_property(name: &str) -> Option<&str> {
    let (name, last) = name.rsplit_once('.')?;
    Operation::named(last).filter(|operation| operation.is_property() && !name.is_empty()).map(|_| name)
}

/// Suggests at most three operations with similar names, and says where all are listed.
pub(super) fn suggestion(name: &str) -> String {
    let similarity = |other: &str| strsim::normalized_damerau_levenshtein(name, other);
    let mut names: Vec<&str> = OPERATIONS.iter().map(Operation::name).collect();
    names.sort_by_key(|other| Reverse((similarity(other) * 1e6) as u64));
    match names.iter().take_while(|other| similarity(other) > 0.5).count() {
        0 => {
            "stridemap view --help lists all; if it is part of a tensor's name, quote the name: 'odd.name()'"
                .to_owned()
        }
        near => {
            names.truncate(near.min(3));
            format!("did you mean {}? stridemap view --help lists all", names.join(" or "))
        }
    }
}

/// Lists the signatures, in lines that fit a terminal.
pub(crate) fn help() -> String {
    let mut lines = vec![String::new()];
    for operation in OPERATIONS {
        let piece = format!("  .{}", operation.signature);
        match lines.last_mut() {
            Some(line) if line.len() + piece.len() <= help_width() => line.push_str(&piece),
            _ => lines.push(piece),
        }
    }
    lines.join("\n")
}
