//! Splits views into pieces that fit in memory.

use stridemap::{ErrorKind, Result, SharedGuard, Tensor};

/// Keeps others from changing the elements of a mutable tensor until the guard is dropped, so that several reads find
/// the same elements. Returns the tensor to be read. Other tensors need no guard.
///
/// # Errors
/// Those of [`Tensor::lock_shared`].
pub(crate) fn steady(view: &Tensor) -> Result<(Tensor, Option<SharedGuard>)> {
    match view.lock_shared() {
        Ok(guard) => Ok((Tensor::clone(&guard), Some(guard))),
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok((view.clone(), None)),
        Err(e) => Err(e),
    }
}

/// The axis along which a piece is halved.
#[derive(Clone, Copy)]
pub(crate) enum Cut {
    /// The first axis longer than 1, so that the pieces follow each other in row-major order.
    Outermost,
    /// The longest axis, so that pieces are about equally long along all axes, and reads are in runs whichever axis is
    /// contiguous.
    Longest,
}

/// The same part of several views of the same size.
pub(crate) struct Piece {
    pub(crate) views: Vec<Tensor>,
    /// The index of the piece's first element in the whole view.
    pub(crate) origin: Vec<usize>,
}

/// An iterator over pieces of at most `limit_elems` elements, which together cover the views.
pub(crate) struct Pieces {
    rest: Vec<Piece>,
    limit_elems: usize,
    cut: Cut,
}

impl Pieces {
    /// Creates the pieces of views that all have the same size.
    pub(crate) fn of(views: Vec<Tensor>, limit_elems: usize, cut: Cut) -> Self {
        let origin = vec![0; views.first().map_or(0, Tensor::ndim)];
        Pieces { rest: vec![Piece { views, origin }], limit_elems, cut }
    }

    /// Takes the next remaining piece, and halves it until it is small enough.
    fn take(&mut self) -> Result<Option<Piece>> {
        while let Some(piece) = self.rest.pop() {
            let Some(whole) = piece.views.first().filter(|view| view.numel() > self.limit_elems.max(1))
            else {
                return Ok(Some(piece));
            };
            let mut axes = whole.size().iter().copied().enumerate();
            let axis = match self.cut {
                Cut::Outermost => axes.find(|&(_, n)| n > 1),
                Cut::Longest => axes.rev().max_by_key(|&(_, n)| n),
            };
            // The piece has more than one element, so some axis is longer than 1.
            let (axis, n) = axis.unwrap_or((0, 1));
            let part = |start: usize, count: usize| -> Result<Piece> {
                let narrowed =
                    piece.views.iter().map(|view| view.narrow(axis as isize, start as isize, count));
                let mut origin = piece.origin.clone();
                origin.iter_mut().skip(axis).take(1).for_each(|at| *at += start);
                Ok(Piece { views: narrowed.collect::<Result<_>>()?, origin })
            };
            let half = n / 2;
            let second = part(half, n - half)?;
            self.rest.push(second);
            self.rest.push(part(0, half)?);
        }
        Ok(None)
    }
}

impl Iterator for Pieces {
    type Item = Result<Piece>;

    /// Returns the next piece. After an error, the iterator ends.
    fn next(&mut self) -> Option<Self::Item> {
        let taken = self.take();
        if taken.is_err() {
            self.rest.clear();
        }
        taken.transpose()
    }
}

/// Returns a view that has the elements of each repeated axis once: an axis of stride 0 gets the length 1.
pub(crate) fn without_repeats(view: &Tensor) -> Result<Tensor> {
    let mut once = view.clone();
    for (axis, (&n, &stride)) in view.size().iter().zip(view.stride()).enumerate() {
        if n > 1 && stride == 0 {
            once = once.narrow(axis, 0, 1)?;
        }
    }
    Ok(once)
}

/// Returns the index of an element from its position in row-major order, as NumPy's `unravel_index` does.
pub(crate) fn unravel_index(position: usize, size: &[usize]) -> Vec<usize> {
    let (mut rest, mut index) = (position, vec![0; size.len()]);
    for (at, &n) in index.iter_mut().zip(size).rev() {
        *at = rest % n;
        rest /= n;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts a tensor whose elements are their own positions, and returns the elements in the order of the pieces.
    fn check(size: &[usize], limit_elems: usize, cut: Cut) -> Vec<i64> {
        let numel: usize = size.iter().product();
        let whole = Tensor::from_vec((0..numel as i64).collect(), size).unwrap();
        let mut order = Vec::new();
        for piece in Pieces::of(vec![whole.clone(), whole.clone()], limit_elems, cut) {
            let piece = piece.unwrap();
            assert_eq!((piece.views.len(), piece.views[0].size()), (2, piece.views[1].size()));
            assert!(piece.views[0].numel() <= limit_elems.max(1));
            let at: Vec<isize> = piece.origin.iter().map(|&at| at as isize).collect();
            let values = piece.views[1].read::<i64>().unwrap();
            if let Some(&first) = values.first() {
                assert_eq!(whole.get::<i64>(&at).unwrap(), first);
            }
            order.extend(values);
        }
        order
    }

    #[test]
    fn pieces_cover_the_views_and_state_their_positions() {
        for size in [&[][..], &[7], &[3, 5, 4], &[1, 1, 30], &[2, 1, 0, 3], &[16, 17]] {
            let numel: usize = size.iter().product();
            let whole: Vec<i64> = (0..numel as i64).collect();
            for limit_elems in [0, 1, 2, 5, 1000] {
                assert_eq!(check(size, limit_elems, Cut::Outermost), whole, "{size:?} {limit_elems}");
                let mut tiles = check(size, limit_elems, Cut::Longest);
                tiles.sort_unstable();
                assert_eq!(tiles, whole, "{size:?} {limit_elems}");
            }
        }
    }

    #[test]
    fn longest_axis_is_cut_first() {
        let whole = Tensor::from_vec(vec![0u8; 64 * 64], &[64, 64]).unwrap();
        let pieces = Pieces::of(vec![whole], 256, Cut::Longest);
        assert!(pieces.map(Result::unwrap).all(|piece| piece.views[0].size() == [16, 16]));
    }
}
