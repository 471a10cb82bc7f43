use std::fmt;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// One place in a subscript, as in `tensor[0, 1:3, ..., None]`. The macro [`s!`](crate::s) writes several.
///
/// Made from a position (`1`, `-1`) or a range (`1..3`, `..-1`, `..`), whose bounds are those of a Python slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Index {
    /// One position; the axis goes. Negative counts from the end.
    At(isize),
    /// A Python slice: bounds may be left out, may count from the end, and are clamped; the step may be negative.
    Slice {
        /// The first position taken.
        start: Option<isize>,
        /// The position before which to stop.
        end: Option<isize>,
        /// From one position to the next; not 0.
        step: isize,
    },
    /// As many whole axes as are left over. At most once.
    Ellipsis,
    /// A new axis of size 1.
    NewAxis,
}

/// A subscript, for [`Tensor::index`](crate::Tensor::index): positions, ranges, ranges with a step after `;`, `...` for
/// the axes that are left over, and `NewAxis` or `None`.
///
/// Bounds and steps are those of Python: `..;-1` is `::-1`, all positions from the last to the first.
///
/// ```
/// use stridemap::{Tensor, s};
///
/// let x = Tensor::from_vec((0..24i64).collect(), &[2, 3, 4])?;
/// let view = x.index(s![1, .., 1..;2])?;      // x[1, :, 1::2]
/// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[3, 2][..], &[4, 2][..], 13));
/// let view = x.index(s![..., -1, NewAxis])?;  // x[..., -1, None]
/// assert_eq!((view.size(), view.stride(), view.storage_offset()), (&[2, 3, 1][..], &[12, 4, 1][..], 3));
/// # Ok::<(), stridemap::Error>(())
/// ```
#[macro_export]
macro_rules! s {
    (@[$($done:expr),*]) => { [$($done),*] };
    (@[$($done:expr),*] ... $(, $($rest:tt)*)?) => { $crate::s!(@[$($done,)* $crate::Index::Ellipsis] $($($rest)*)?) };
    (@[$($done:expr),*] NewAxis $(, $($rest:tt)*)?) => { $crate::s!(@[$($done,)* $crate::Index::NewAxis] $($($rest)*)?) };
    (@[$($done:expr),*] None $(, $($rest:tt)*)?) => { $crate::s!(@[$($done,)* $crate::Index::NewAxis] $($($rest)*)?) };
    (@[$($done:expr),*] $place:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@[$($done,)* $crate::Index::from($place)] $($($rest)*)?)
    };
    (@[$($done:expr),*] $place:expr; $step:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@[$($done,)* $crate::Index::from($place).with_step($step)] $($($rest)*)?)
    };
    ($($places:tt)*) => { $crate::s!(@[] $($places)*) };
}

impl Index {
    /// The same range in other steps; what is no range stays as it is.
    #[must_use]
    pub fn with_step(self, step: isize) -> Self {
        match self {
            Index::Slice { start, end, .. } => Index::Slice { start, end, step },
            place => place,
        }
    }
}

macro_rules! index_from {
    ($($number:ty),*) => {$(
        impl From<$number> for Index {
            fn from(position: $number) -> Self {
                Index::At(bound(position))
            }
        }

        impl From<Range<$number>> for Index {
            fn from(range: Range<$number>) -> Self {
                slice(Some(bound(range.start)), Some(bound(range.end)))
            }
        }

        impl From<RangeFrom<$number>> for Index {
            fn from(range: RangeFrom<$number>) -> Self {
                slice(Some(bound(range.start)), None)
            }
        }

        impl From<RangeTo<$number>> for Index {
            fn from(range: RangeTo<$number>) -> Self {
                slice(None, Some(bound(range.end)))
            }
        }

        impl From<RangeInclusive<$number>> for Index {
            fn from(range: RangeInclusive<$number>) -> Self {
                slice(Some(bound(*range.start())), after(bound(*range.end())))
            }
        }

        impl From<RangeToInclusive<$number>> for Index {
            fn from(range: RangeToInclusive<$number>) -> Self {
                slice(None, after(bound(range.end)))
            }
        }
    )*};
}

index_from!(i32, i64, isize, usize);

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        slice(None, None)
    }
}

fn slice(start: Option<isize>, end: Option<isize>) -> Index {
    Index::Slice { start, end, step: 1 }
}

/// What does not fit lies past the end of every tensor, and so does the highest number.
fn bound(position: impl TryInto<isize>) -> isize {
    position.try_into().unwrap_or(isize::MAX)
}

/// The bound behind an inclusive end; behind the last position, -1, there is none.
fn after(end: isize) -> Option<isize> {
    if end == -1 { None } else { Some(end.saturating_add(1)) }
}

/// As it stands in a subscript: `-1`, `1:3`, `::2`, `...`, `None`.
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

/// A subscript as it stands in errors: `[1, ::2, ...]`.
pub(super) struct Subscript<'a>(pub(super) &'a [Index]);

impl fmt::Display for Subscript<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.0.iter().map(Index::to_string).collect();
        write!(f, "[{}]", places.join(", "))
    }
}
