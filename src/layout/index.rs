use std::fmt;
use std::fmt::Arguments;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use super::axis::position_in;
use super::header::{Dim, distance, overflow};
use super::{Axes, Axis, Layout};
use crate::error::{Error, ErrorKind, Result};

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
struct Subscript<'a>(&'a [Index]);

impl fmt::Display for Subscript<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.0.iter().map(Index::to_string).collect();
        write!(f, "[{}]", places.join(", "))
    }
}

impl Layout {
    /// One position along an axis, which goes.
    pub(crate) fn select(&self, axis: Axis<'_>, index: isize) -> Result<Layout> {
        let op = format_args!("select({axis}, {index})");
        let (axis, n, step) = self.dim(op, axis)?;
        let position = self.position(op, axis, n, index)?;
        let mut dims = self.to_dims();
        dims.remove(axis);
        self.moved(op, dims, distance(position, step))
    }

    /// The position that an index means on an axis of size `n`.
    fn position(&self, op: Arguments<'_>, axis: usize, n: usize, index: isize) -> Result<usize> {
        position_in(index, n).ok_or_else(|| {
            Error::new(
                ErrorKind::OutOfRange,
                format!("{op}: index {index} is out of range for axis {axis} with size {n}, of {self}"),
            )
        })
    }

    /// `length` positions along an axis, from `start` on. Unlike a slice, it refuses what it cannot give in full.
    pub(crate) fn narrow(&self, axis: Axis<'_>, start: isize, length: usize) -> Result<Layout> {
        let op = format_args!("narrow({axis}, {start}, {length})");
        let (axis, n, step) = self.dim(op, axis)?;
        let from_start = if start < 0 { start.checked_add_unsigned(n) } else { Some(start) };
        let position = from_start.and_then(|start| usize::try_from(start).ok());
        let fits = position.filter(|start| start.checked_add(length).is_some_and(|end| end <= n));
        let Some(position) = fits else {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "{op}: {length} from {start} on is out of range for axis {axis} with size {n}, of {self}"
                ),
            ));
        };
        self.resized(op, axis, length, step, distance(position, step))
    }

    /// The positions of a Python slice along an axis; the step may be negative.
    pub(crate) fn slice(
        &self,
        axis: Axis<'_>,
        start: Option<isize>,
        end: Option<isize>,
        step: isize,
    ) -> Result<Layout> {
        let op = format_args!("slice({axis}, {})", Index::Slice { start, end, step });
        if step == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: a step of 0 goes nowhere")));
        }
        let (axis, n, old_step) = self.dim(op, axis)?;
        let (first, count) = slice_positions(n, start, end, step);
        // Between two positions it cannot overflow; and where there is one, or none, no stride matters.
        let new_step = old_step.saturating_mul(step);
        self.resized(op, axis, count, new_step, distance(first, old_step))
    }

    /// Reverses the order along each of the axes.
    pub(crate) fn flip(&self, axes: &Axes<'_>) -> Result<Layout> {
        let op = format_args!("flip({axes})");
        let flipped = self.axes(op, axes)?;
        let (mut dims, mut shift) = (self.to_dims(), 0i128);
        for (axis, dim) in dims.iter_mut().enumerate() {
            if flipped.contains(&axis) {
                shift = shift.saturating_add(distance(dim.size.saturating_sub(1), dim.stride));
                dim.stride = dim.stride.saturating_neg();
            }
        }
        self.moved(op, dims, shift)
    }

    /// A subscript: each place in turn takes an axis, skips some, or adds one.
    pub(crate) fn index(&self, subscript: &[Index]) -> Result<Layout> {
        let op = format_args!("index {}", Subscript(subscript));
        let refuse = |kind, why: String| Err(Error::new(kind, format!("{op}: {why}")));
        let taken =
            subscript.iter().filter(|place| matches!(place, Index::At(_) | Index::Slice { .. })).count();
        if subscript.iter().filter(|&&place| place == Index::Ellipsis).count() > 1 {
            return refuse(ErrorKind::InvalidArgument, "`...` stands more than once".into());
        }
        let Some(skipped) = self.rank().checked_sub(taken) else {
            return refuse(
                ErrorKind::OutOfRange,
                format!("{taken} indices for the {} axes of {self}", self.rank()),
            );
        };
        let mut own_axes = self.size().iter().copied().enumerate();
        let mut view = self.clone();
        let mut axis = 0usize;
        for place in subscript {
            let at = Axis::from(axis);
            let kept = match *place {
                Index::At(index) => {
                    if let Some((own_axis, n)) = own_axes.next() {
                        self.position(op, own_axis, n, index)?;
                    }
                    view = view.select(at, index)?;
                    0
                }
                Index::Slice { start, end, step } => {
                    own_axes.next();
                    view = view.slice(at, start, end, step).map_err(|e| e.context(op))?;
                    1
                }
                Index::Ellipsis => {
                    own_axes.by_ref().take(skipped).for_each(drop);
                    skipped
                }
                Index::NewAxis => {
                    view = view.unsqueezed(axis)?;
                    1
                }
            };
            axis = axis.saturating_add(kept);
        }
        Ok(view)
    }

    /// Adds an axis of size 1; `axis` is where it will be.
    pub(crate) fn unsqueeze(&self, axis: isize) -> Result<Layout> {
        let place_count = self.rank().saturating_add(1);
        let at = position_in(axis, place_count).ok_or_else(|| {
            Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "unsqueeze({axis}): {self} has room for a new axis from -{place_count} to {}",
                    self.rank()
                ),
            )
        })?;
        self.unsqueezed(at)
    }

    /// Adds an axis of size 1 before position `axis`, with the stride that PyTorch gives it.
    fn unsqueezed(&self, axis: usize) -> Result<Layout> {
        let op = format_args!("unsqueeze");
        let step = match self.dims().nth(axis) {
            Some((n, step)) => isize::try_from(n).ok().and_then(|n| step.checked_mul(n)),
            None => Some(1),
        };
        let mut dims = self.to_dims();
        dims.insert(axis, Dim::new(1, step.ok_or_else(|| overflow(op))?));
        self.moved(op, dims, 0)
    }

    /// The same but for one axis.
    pub(super) fn resized(
        &self,
        op: Arguments<'_>,
        axis: usize,
        n: usize,
        step: isize,
        shift: i128,
    ) -> Result<Layout> {
        let mut dims = self.to_dims();
        if let Some(dim) = dims.get_mut(axis) {
            (dim.size, dim.stride) = (n, step);
        }
        self.moved(op, dims, shift)
    }
}

/// Python's `slice.indices`: the first position and how many there are.
fn slice_positions(n: usize, start: Option<isize>, end: Option<isize>, step: isize) -> (usize, usize) {
    let n = n as i128;
    // The lowest and highest place where a cursor that goes this way may stand or stop.
    let (lowest, highest) = if step > 0 { (0, n) } else { (-1, n.saturating_sub(1)) };
    let clamp = |bound: isize| {
        let bound = bound as i128;
        let from_start = if bound < 0 { bound.saturating_add(n) } else { bound };
        from_start.clamp(lowest, highest)
    };
    let (default_start, default_end) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let first = start.map_or(default_start, clamp);
    let stop = end.map_or(default_end, clamp);
    let step = step as i128;
    let distance = if step > 0 { stop.saturating_sub(first) } else { first.saturating_sub(stop) };
    let count = if distance <= 0 {
        0
    } else {
        distance.saturating_sub(1).checked_div(step.abs()).unwrap_or_default().saturating_add(1)
    };
    (usize::try_from(first).unwrap_or_default(), usize::try_from(count).unwrap_or_default())
}
