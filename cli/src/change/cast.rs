//! The elements of a tensor as those of another dtype.

use stridemap::{DType, Source, Tensor};
use stridemap_interop::gguf::TYPE_KEY;

use crate::error::{Error, Result};
use crate::names::quoted;
use crate::pieces::{Cut, Pieces};
use crate::ui::{counted, message};

/// The number of elements that are converted at a time.
const PIECE_ELEMS: usize = 1 << 20;

/// The elements of a tensor, converted in pieces.
pub(super) struct Cast<'a> {
    pub(super) tensor: Tensor,
    pub(super) to: DType,
    pub(super) progress: &'a dyn Fn(u64),
}

impl Source for Cast<'_> {
    fn dtype(&self) -> DType {
        self.to
    }

    fn size(&self) -> Vec<usize> {
        self.tensor.size().to_vec()
    }

    fn names(&self) -> Vec<Option<&str>> {
        Source::names(&self.tensor)
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> stridemap::Result<()>) -> stridemap::Result<()> {
        for piece in Pieces::of(vec![self.tensor.clone()], PIECE_ELEMS, Cut::Outermost) {
            for view in piece?.views {
                view.to_dtype(self.to)?.write_to(sink)?;
                (self.progress)(view.nbytes() as u64);
            }
        }
        Ok(())
    }
}

/// What kind of numbers a dtype has. A glob converts only numbers of one kind to each other.
#[derive(PartialEq, Eq)]
enum Kind {
    Bool,
    Integer,
    Float,
    Complex,
    /// Two numbers in a byte, which no conversion takes apart.
    Packed,
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool => Kind::Bool,
        DType::F4E2M1FNx2 => Kind::Packed,
        _ if dtype.is_floating_point() => Kind::Float,
        _ if dtype.is_complex() => Kind::Complex,
        _ => Kind::Integer,
    }
}

/// Returns whether a selected tensor is converted: one that is given by its name always is, and others if they are of the same
/// kind of numbers. `blocks` is the type of a tensor that no dtype has.
///
/// # Errors
/// There is no such conversion of a tensor that is given by its name.
pub(super) fn is_converted(
    command: &str,
    (name, from): (&str, DType),
    to: DType,
    is_named: bool,
    blocks: Option<&str>,
) -> Result<bool> {
    if let Some(of) = blocks {
        let why = format!("its elements are the bytes of {of}, as its attribute {TYPE_KEY} says");
        let refused = format!("{command} {}: {why}; no conversion takes them apart", quoted(name));
        return if is_named { Err(Error::Refused(refused)) } else { Ok(false) };
    }
    let is_converted = from != to && (is_named || kind(from) == kind(to));
    if is_converted {
        Tensor::zeros(from, &[0])?.to_dtype(to).map(drop)?; // refuses a conversion that does not exist
    }
    Ok(is_converted)
}

/// Says which selected tensors stay as they are, because they are of another kind than `to`.
pub(super) fn note_others<'a>(to: DType, mut others: impl Iterator<Item = (&'a str, DType)>) {
    let Some((name, dtype)) = others.next() else { return };
    let count = 1 + others.count() as u64;
    let (stay, them) = if count == 1 { ("stays as it is", "it") } else { ("stay as they are", "them") };
    let (tensors, name) = (counted(count, "tensor"), quoted(name));
    message(&format!(
        "note: {tensors} of another kind than {to} {stay}, such as {name}, {dtype}; to convert {them}, give the name"
    ));
}
