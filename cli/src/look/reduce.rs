//! Reduces a matrix of any size to blocks that can be shown.

use stridemap::{DType, Result, Scalar, Tensor};

use crate::pieces::{Cut, Piece, Pieces, steady, unravel_index, without_repeats};
use crate::proportion::part_of;

/// The number of elements in memory at a time.
const PIECE_ELEMS: usize = 1 << 18;

/// What a block shows of its part of a matrix. Either shows NaN if the part has one, and otherwise an infinity if it has
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// The mean, as in any image that is made smaller. Not the root mean square with the sign of the mean: in blocks of
    /// noise its magnitude is that of the whole matrix and its sign is that of a coin, so that all have one of two colors.
    Mean,
    /// The element of largest magnitude, in which no single element is lost.
    Extreme,
}

/// A matrix of blocks, each of which stands for a part of a larger matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Blocks {
    pub(crate) row_count: usize,
    pub(crate) column_count: usize,
    /// The blocks in row-major order.
    pub(crate) numbers: Vec<f64>,
    /// The number of rows and columns of the largest block.
    pub(crate) block_size: (usize, usize),
}

/// A block while its part is read.
#[derive(Clone, Default)]
struct Block {
    shown: f64,
    finite_count: u64,
}

impl Reduction {
    /// Returns the rule for blocks of this size, for a caption.
    pub(crate) fn rule(self, (rows, columns): (usize, usize)) -> String {
        match self {
            Reduction::Mean => format!("each block shows the mean of up to {rows} × {columns} elements"),
            Reduction::Extreme => {
                format!("each block shows the element of largest magnitude of up to {rows} × {columns}")
            }
        }
    }
}

impl Block {
    fn add(&mut self, number: f64, reduction: Reduction) {
        match reduction {
            // NaN is never replaced.
            Reduction::Extreme if number.is_nan() || number.abs() > self.shown.abs() => self.shown = number,
            Reduction::Extreme => {}
            Reduction::Mean if number.is_nan() => self.shown = number,
            Reduction::Mean if !self.shown.is_finite() => {}
            Reduction::Mean if number.is_infinite() => self.shown = number,
            Reduction::Mean => {
                // Of equal elements exactly their value, and of large ones no infinity.
                self.finite_count += 1;
                let part = 1. / self.finite_count as f64;
                self.shown += number * part - self.shown * part;
            }
        }
    }
}

impl Blocks {
    /// Reduces a matrix to at most the given numbers of rows and columns. `progress` is called with the bytes read
    /// since the last call.
    pub(crate) fn of(
        matrix: &Tensor,
        reduction: Reduction,
        (most_rows, most_columns): (usize, usize),
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let &[rows, columns] = matrix.size() else { unreachable!("the caller checks for two dimensions") };
        let (row_count, column_count) = (rows.min(most_rows), columns.min(most_columns));
        let block_size = (rows.div_ceil(row_count.max(1)), columns.div_ceil(column_count.max(1)));
        // Repeated elements are read once, because an expanded matrix can have more than can ever be read.
        let once = without_repeats(matrix)?;
        let &[once_rows, once_columns] = once.size() else { unreachable!("it has the same dimensions") };
        let (height, width) = (row_count.min(once_rows), column_count.min(once_columns));
        let mut read_blocks = vec![Block::default(); height * width];
        let mut read_piece = |piece: Piece| -> Result<()> {
            let [first_row, first_column] = piece.origin[..] else { return Ok(()) };
            for view in &piece.views {
                let &[_, piece_columns] = view.size() else { continue };
                let block_of_column: Vec<usize> = (first_column..)
                    .take(piece_columns)
                    .map(|column| part_of(column as u64, once_columns as u64, width))
                    .collect();
                for (row, elements) in (first_row..).zip(read(view, reduction)?.chunks(piece_columns)) {
                    let first = part_of(row as u64, once_rows as u64, height) * width;
                    for (&column, &number) in block_of_column.iter().zip(elements) {
                        if let Some(block) = read_blocks.get_mut(first + column) {
                            block.add(number, reduction);
                        }
                    }
                }
                progress(view.nbytes() as u64);
            }
            Ok(())
        };
        if matrix.numel() > 0 {
            let (once, _guard) = steady(&once)?;
            Pieces::of(vec![once], PIECE_ELEMS, Cut::Outermost).try_for_each(|piece| read_piece(piece?))?;
        }
        // A repeated row or column was read as one.
        let at = |block: usize, count: usize| if count == 1 { 0 } else { block };
        let all = (0..row_count).flat_map(|row| (0..column_count).map(move |column| (row, column)));
        let block = |(row, column)| read_blocks.get(at(row, height) * width + at(column, width));
        let numbers = all.map(|place| block(place).map(|block| block.shown).unwrap_or_default()).collect();
        Ok(Blocks { row_count, column_count, numbers, block_size })
    }
}

/// Returns the index of the first NaN in row-major order.
pub(crate) fn first_nan(view: &Tensor, mut progress: impl FnMut(u64)) -> Result<Option<Vec<usize>>> {
    let (view, _guard) = steady(view)?;
    // The first of repeated elements has the index 0 along the axis.
    for piece in Pieces::of(vec![without_repeats(&view)?], PIECE_ELEMS, Cut::Outermost) {
        let piece = piece?;
        for part in &piece.views {
            if let Some(position) = read(part, Reduction::Extreme)?.iter().position(|number| number.is_nan())
            {
                let within = unravel_index(position, part.size());
                return Ok(Some(piece.origin.iter().zip(within).map(|(from, at)| from + at).collect()));
            }
            progress(part.nbytes() as u64);
        }
    }
    Ok(None)
}

/// Returns the elements as numbers: the magnitude of a complex number, and of a pair the mean or the number of larger
/// magnitude.
fn read(view: &Tensor, reduction: Reduction) -> Result<Vec<f64>> {
    if !view.dtype().is_complex() && view.dtype() != DType::F4E2M1FNx2 {
        return view.to_dtype(DType::F64)?.read();
    }
    let number = |scalar| match scalar {
        Scalar::Complex(re, im) => f64::hypot(re, im),
        Scalar::Pair(low, high) if reduction == Reduction::Mean => f64::midpoint(low, high),
        Scalar::Pair(low, high) if f64::abs(low) > f64::abs(high) => low,
        Scalar::Pair(_, high) => high,
        _ => f64::NAN,
    };
    Ok(view.to_scalars()?.into_iter().map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_the_mean_of_its_elements_and_what_is_not_finite_wins() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        for (elements, mean) in [
            ([1., -2., 4., 7.], 2.5),
            ([-1., 1., -1., 1.], 0.),
            ([0.1; 4], 0.1),
            ([f64::MAX, -f64::MAX, f64::MAX, -f64::MAX], 0.),
            ([f64::MAX; 4], f64::MAX),
            ([1., inf, 5., 5.], inf),
            ([1., -inf, inf, 5.], -inf),
            ([inf, nan, -inf, 5.], nan),
            ([nan, 1., 2., 3.], nan),
        ] {
            let matrix = Tensor::from_vec(elements.to_vec(), &[2, 2]).unwrap();
            let blocks = Blocks::of(&matrix, Reduction::Mean, (1, 1), |_| ()).unwrap();
            let shown = blocks.numbers[0];
            assert!(shown == mean || shown.is_nan() && mean.is_nan(), "{elements:?}: {shown}");
        }
    }

    #[test]
    fn each_block_is_its_largest_element_and_nan_wins() {
        let mut elements: Vec<f32> = vec![0.; 6 * 4];
        (elements[1], elements[4], elements[23], elements[12], elements[17]) = (-3., 2., 1., f32::NAN, 9.);
        let matrix = Tensor::from_vec(elements, &[6, 4]).unwrap();
        let blocks = Blocks::of(&matrix, Reduction::Extreme, (3, 2), |_| ()).unwrap();
        assert_eq!((blocks.row_count, blocks.column_count, blocks.block_size), (3, 2, (2, 2)));
        assert_eq!((&blocks.numbers[..2], blocks.numbers[5]), (&[-3., 0.][..], 1.));
        assert!(blocks.numbers[2].is_nan());
    }

    #[test]
    fn matrix_of_several_pieces_is_reduced_like_a_whole() {
        let matrix = Tensor::from_vec((0..1_000_000i32).collect(), &[1000, 1000]).unwrap();
        let mut read_bytes = 0;
        let mut blocks = |reduction| {
            Blocks::of(&matrix.t().unwrap(), reduction, (4, 2), |bytes| read_bytes += bytes).unwrap().numbers
        };
        assert_eq!(blocks(Reduction::Extreme)[..4], [499_249., 999_249., 499_499., 999_499.]);
        let means = blocks(Reduction::Mean);
        // The mean of the first block is that of its first and its last element.
        for (mean, expected) in means.into_iter().zip([249_624.5, 749_624.5, 249_874.5, 749_874.5]) {
            assert!((mean - expected).abs() < 1e-6, "{mean} {expected}");
        }
        assert_eq!(read_bytes, 8_000_000);
    }

    #[test]
    fn first_nan_is_found_in_any_piece() {
        let mut elements = vec![0f32; 1_000_000];
        assert_eq!(
            first_nan(&Tensor::from_vec(elements.clone(), &[1000, 1000]).unwrap(), |_| ()).unwrap(),
            None
        );
        (elements[901_234], elements[950_000]) = (f32::NAN, f32::NAN);
        let matrix = Tensor::from_vec(elements, &[1000, 1000]).unwrap();
        assert_eq!(first_nan(&matrix, |_| ()).unwrap(), Some(vec![901, 234]));
        assert_eq!(first_nan(&matrix.t().unwrap(), |_| ()).unwrap(), Some(vec![0, 950]));
    }

    #[test]
    fn repeated_elements_are_read_once() {
        let row = Tensor::from_vec(vec![1f32, -2., f32::NAN, 4.], &[1, 4]).unwrap();
        let many = row.expand([1usize << 55, 4]).unwrap();
        let blocks = Blocks::of(&many, Reduction::Mean, (3, 2), |_| ()).unwrap();
        assert_eq!(
            (blocks.row_count, blocks.column_count, blocks.block_size),
            (3, 2, ((1 << 55) / 3 + 1, 2))
        );
        for row in blocks.numbers.chunks(2) {
            assert!(row[0] == -0.5 && row[1].is_nan());
        }
        let wide = Blocks::of(&many.t().unwrap(), Reduction::Mean, (4, 3), |_| ()).unwrap();
        assert_eq!((wide.numbers[..3].to_vec(), wide.numbers[9]), (vec![1.; 3], 4.));
        assert_eq!(first_nan(&many, |_| ()).unwrap(), Some(vec![0, 2]));
        assert_eq!(first_nan(&many.t().unwrap(), |_| ()).unwrap(), Some(vec![2, 0]));
    }

    #[test]
    fn small_matrix_is_not_reduced() {
        let matrix = Tensor::from_vec(vec![1u8, 2, 3, 4], &[2, 2]).unwrap();
        assert_eq!(Blocks::of(&matrix, Reduction::Mean, (80, 80), |_| ()).unwrap().numbers, [1., 2., 3., 4.]);
        let empty = Tensor::from_vec(Vec::<f32>::new(), &[0, 5]).unwrap();
        assert!(Blocks::of(&empty, Reduction::Mean, (80, 80), |_| ()).unwrap().numbers.is_empty());
    }
}
