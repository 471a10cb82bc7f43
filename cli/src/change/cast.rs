//! The elements of a tensor as those of another dtype.

use stridemap::{DType, Source, Tensor};

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
pub(super) enum Kind {
    Bool,
    Integer,
    Float,
    Complex,
    /// Two numbers in a byte, which no conversion takes apart.
    Packed,
}

pub(super) fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool => Kind::Bool,
        DType::F4E2M1FNx2 => Kind::Packed,
        _ if dtype.is_floating_point() => Kind::Float,
        _ if dtype.is_complex() => Kind::Complex,
        _ => Kind::Integer,
    }
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
