//! The parts of a subscript: indices, ranges with steps, `None` and `...`.

use std::fmt;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use super::Integer;

/// One entry of a subscript such as `tensor[0, 1:3, ..., None]`. The [`ix!`](crate::ix) macro creates whole
/// subscripts.
///
/// Converts from a position (`1`, `-1`) or a range (`1..3`, `..-1`, `..`), whose bounds are those of a Python slice, or
/// a range and a step (`(1.., 2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Index {
    /// One position, negative from the end. The axis is removed.
    At(isize),
    /// A Python slice. Bounds may be omitted or count from the end, and are clamped. The step may be negative.
    Slice {
        /// The first position.
        start: Option<isize>,
        /// The position before which the slice stops.
        end: Option<isize>,
        /// The distance from one position to the next, not 0.
        step: isize,
    },
    /// All axes that no other entry consumes. At most one per subscript.
    Ellipsis,
    /// A new axis of size 1.
    NewAxis,
}

/// Creates a subscript for [`Tensor::index`](crate::Tensor::index) from positions, ranges, ranges with a step after
/// `;`, `...` for the remaining axes, and `NewAxis` or `None`.
///
/// Bounds and steps are those of Python: `..;-1` is `::-1`, all positions from the last to the first.
///
/// ```
/// use stridemap::{Tensor, ix};
///
/// let x = Tensor::from_vec((0..24i64).collect(), &[2, 3, 4])?;
/// let view = x.index(ix![1, .., 1..;2])?;      // x[1, :, 1::2]
/// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3, 2][..], &[4, 2][..], 13));
/// let view = x.index(ix![..., -1, NewAxis])?;  // x[..., -1, None]
/// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[2, 3, 1][..], &[12, 4, 1][..], 3));
/// # Ok::<(), stridemap::Error>(())
/// ```
#[macro_export]
macro_rules! ix {
    (@[$($done:expr),*]) => { [$($done),*] };
    (@[$($done:expr),*] ... $(, $($rest:tt)*)?) => { $crate::ix!(@[$($done,)* $crate::Index::Ellipsis] $($($rest)*)?) };
    (@[$($done:expr),*] NewAxis $(, $($rest:tt)*)?) => { $crate::ix!(@[$($done,)* $crate::Index::NewAxis] $($($rest)*)?) };
    (@[$($done:expr),*] None $(, $($rest:tt)*)?) => { $crate::ix!(@[$($done,)* $crate::Index::NewAxis] $($($rest)*)?) };
    (@[$($done:expr),*] $place:expr $(, $($rest:tt)*)?) => {
        $crate::ix!(@[$($done,)* $crate::Index::from($place)] $($($rest)*)?)
    };
    (@[$($done:expr),*] $place:expr; $step:expr $(, $($rest:tt)*)?) => {
        $crate::ix!(@[$($done,)* $crate::Index::from(($place, $step))] $($($rest)*)?)
    };
    ($($places:tt)*) => { $crate::ix!(@[] $($places)*) };
}

impl<N: Integer> From<N> for Index {
    fn from(position: N) -> Self {
        Index::At(position.to_isize())
    }
}

impl<N: Integer> From<Range<N>> for Index {
    fn from(range: Range<N>) -> Self {
        slice(Some(range.start.to_isize()), Some(range.end.to_isize()))
    }
}

impl<N: Integer> From<RangeFrom<N>> for Index {
    fn from(range: RangeFrom<N>) -> Self {
        slice(Some(range.start.to_isize()), None)
    }
}

impl<N: Integer> From<RangeTo<N>> for Index {
    fn from(range: RangeTo<N>) -> Self {
        slice(None, Some(range.end.to_isize()))
    }
}

impl<N: Integer> From<RangeInclusive<N>> for Index {
    fn from(range: RangeInclusive<N>) -> Self {
        slice(Some(range.start().to_isize()), after(range.end().to_isize()))
    }
}

impl<N: Integer> From<RangeToInclusive<N>> for Index {
    fn from(range: RangeToInclusive<N>) -> Self {
        slice(None, after(range.end.to_isize()))
    }
}

/// A range and a step. A position has none, and stays as it is.
impl<I: Into<Index>, N: Integer> From<(I, N)> for Index {
    fn from((place, step): (I, N)) -> Self {
        match place.into() {
            Index::Slice { start, end, .. } => Index::Slice { start, end, step: step.to_isize() },
            place => place,
        }
    }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        slice(None, None)
    }
}

fn slice(start: Option<isize>, end: Option<isize>) -> Index {
    Index::Slice { start, end, step: 1 }
}

/// Returns the exclusive bound for an inclusive end. An end of -1, the last position, needs no bound.
fn after(end: isize) -> Option<isize> {
    if end == -1 { None } else { Some(end.saturating_add(1)) }
}

/// The form in a subscript: `-1`, `1:3`, `::2`, `...`, `None`.
impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Index::At(position) => write!(f, "{position}"),
            Index::Slice { start, end, step } => {
                let shown = |bound: Option<isize>| bound.map(|bound| bound.to_string()).unwrap_or_default();
                write!(f, "{}:{}", shown(start), shown(end))?;
                if step == 1 { Ok(()) } else { write!(f, ":{step}") }
            }
            Index::Ellipsis => f.write_str("..."),
            Index::NewAxis => f.write_str("None"),
        }
    }
}

/// A subscript in the form shown in errors: `[1, ::2, ...]`.
pub(super) struct Subscript<'a>(pub(super) &'a [Index]);

impl fmt::Display for Subscript<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.0.iter().map(Index::to_string).collect();
        write!(f, "[{}]", places.join(", "))
    }
}
