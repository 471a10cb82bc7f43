use std::fmt;

use super::Layout;
use super::header::overflow;
use crate::error::{Error, ErrorKind, Result};

/// One place in a subscript, as in `tensor[0, 1:3, ..., None]`.
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

impl Layout {
    /// One position along an axis, which goes.
    pub(crate) fn select(&self, axis: isize, index: isize) -> Result<Layout> {
        let op = format!("select({axis}, {index})");
        let axis = self.axis(&op, axis)?;
        let (n, step) = self.dim(&op, axis)?;
        let from_start = if index < 0 { index.checked_add_unsigned(n) } else { Some(index) };
        let position = from_start.and_then(|index| usize::try_from(index).ok()).filter(|&index| index < n);
        let Some(position) = position else {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("{op}: index {index} is out of range for axis {axis} with size {n}"),
            ));
        };
        let (mut size, mut stride) = (self.size().to_vec(), self.stride().to_vec());
        size.remove(axis);
        stride.remove(axis);
        self.moved(&op, size, stride, product(position, step))
    }

    /// `length` positions along an axis, from `start` on. Unlike a slice, it refuses what it cannot give in full.
    pub(crate) fn narrow(&self, axis: isize, start: isize, length: usize) -> Result<Layout> {
        let op = format!("narrow({axis}, {start}, {length})");
        let axis = self.axis(&op, axis)?;
        let (n, step) = self.dim(&op, axis)?;
        let from_start = if start < 0 { start.checked_add_unsigned(n) } else { Some(start) };
        let position = from_start.and_then(|start| usize::try_from(start).ok());
        let fits = position.filter(|start| start.checked_add(length).is_some_and(|end| end <= n));
        let Some(position) = fits else {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("{op}: {length} from {start} on is out of range for axis {axis} with size {n}"),
            ));
        };
        self.replace(&op, axis, length, step, product(position, step))
    }

    /// The positions of a Python slice along an axis; the step may be negative.
    pub(crate) fn slice(
        &self,
        axis: isize,
        start: Option<isize>,
        end: Option<isize>,
        step: isize,
    ) -> Result<Layout> {
        let op = format!("slice({axis}, {})", Index::Slice { start, end, step });
        if step == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{op}: a step of 0 goes nowhere")));
        }
        let axis = self.axis(&op, axis)?;
        let (n, old_step) = self.dim(&op, axis)?;
        let (first, count) = slice_positions(n, start, end, step);
        // Between two positions it cannot overflow; and where there is one, or none, no stride matters.
        let new_step = old_step.saturating_mul(step);
        self.replace(&op, axis, count, new_step, product(first, old_step))
    }

    /// Reverses the order along each of the axes.
    pub(crate) fn flip(&self, axes: &[isize]) -> Result<Layout> {
        let op = format!("flip({axes:?})");
        let mut flipped = self.clone();
        let mut seen = vec![false; self.rank().max(1)];
        for &named in axes {
            let axis = self.axis(&op, named)?;
            if seen.get_mut(axis).is_none_or(|seen| std::mem::replace(seen, true)) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("{op}: axis {named} is named twice"),
                ));
            }
            if self.rank() > 0 {
                let (n, step) = flipped.dim(&op, axis)?;
                let shift = product(n.saturating_sub(1), step);
                flipped = flipped.replace(&op, axis, n, step.saturating_neg(), shift)?;
            }
        }
        Ok(flipped)
    }

    /// A subscript: each place in turn takes an axis, skips some, or adds one.
    pub(crate) fn index(&self, subscript: &[Index]) -> Result<Layout> {
        let refuse = |why: String| {
            let places: Vec<String> = subscript.iter().map(Index::to_string).collect();
            Err(Error::new(ErrorKind::OutOfRange, format!("index [{}]: {why}", places.join(", "))))
        };
        let taken =
            subscript.iter().filter(|place| matches!(place, Index::At(_) | Index::Slice { .. })).count();
        if subscript.iter().filter(|&&place| place == Index::Ellipsis).count() > 1 {
            return refuse("`...` stands more than once".into());
        }
        let Some(skipped) = self.rank().checked_sub(taken) else {
            return refuse(format!("{taken} indices for size {:?} with {} axes", self.size(), self.rank()));
        };
        let mut view = self.clone();
        let mut axis = 0usize;
        for place in subscript {
            let at = axis as isize;
            let kept = match *place {
                Index::At(index) => {
                    view = view.select(at, index)?;
                    0
                }
                Index::Slice { start, end, step } => {
                    view = view.slice(at, start, end, step)?;
                    1
                }
                Index::Ellipsis => skipped,
                Index::NewAxis => {
                    view = view.unsqueeze_at(axis)?;
                    1
                }
            };
            axis = axis.saturating_add(kept);
        }
        Ok(view)
    }

    /// Adds an axis of size 1 before position `axis`, with the stride that PyTorch gives it.
    fn unsqueeze_at(&self, axis: usize) -> Result<Layout> {
        let step = match self.dims().nth(axis) {
            Some((n, step)) => isize::try_from(n).ok().and_then(|n| step.checked_mul(n)),
            None => Some(1),
        };
        let (mut size, mut stride) = (self.size().to_vec(), self.stride().to_vec());
        size.insert(axis, 1);
        stride.insert(axis, step.ok_or_else(|| overflow("unsqueeze"))?);
        self.moved("unsqueeze", size, stride, 0)
    }

    fn replace(&self, op: &str, axis: usize, n: usize, step: isize, shift: i128) -> Result<Layout> {
        let dims = self.dims().enumerate().map(|(at, dim)| if at == axis { (n, step) } else { dim });
        let (size, stride) = dims.unzip();
        self.moved(op, size, stride, shift)
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

/// Cannot overflow: both factors fit in 64 bits.
fn product(position: usize, step: isize) -> i128 {
    (position as i128).saturating_mul(step as i128)
}
