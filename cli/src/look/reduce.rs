//! Reduces a matrix of any size to blocks that can be shown.

use stridemap::{DType, Result, Scalar, Tensor};

use crate::pieces::{Cut, Piece, Pieces, steady, unravel_index, without_repeats};
use crate::proportion::part_of;

/// The number of elements in memory at a time.
const PIECE_ELEMS: usize = 1 << 18;

/// The rule of the reduction, for a caption.
pub(crate) const RULE: &str = "the element of largest magnitude";

/// A matrix of blocks. Each block stands for a part of a larger matrix: it is the element of largest magnitude in the
/// part, or NaN if the part contains NaN. A mean would hide single large elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Blocks {
    pub(crate) row_count: usize,
    pub(crate) column_count: usize,
    /// The blocks in row-major order.
    pub(crate) numbers: Vec<f64>,
    /// The number of rows and columns of the largest block.
    pub(crate) block_size: (usize, usize),
}

impl Blocks {
    /// Reduces a matrix to at most the given numbers of rows and columns. `progress` is called with the bytes read
    /// since the last call.
    pub(crate) fn of(
        matrix: &Tensor,
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
        let mut read_blocks = vec![0f64; height * width];
        let mut read_piece = |piece: Piece| -> Result<()> {
            let [first_row, first_column] = piece.origin[..] else { return Ok(()) };
            for view in &piece.views {
                let &[_, piece_columns] = view.size() else { continue };
                let block_of_column: Vec<usize> = (first_column..)
                    .take(piece_columns)
                    .map(|column| part_of(column as u64, once_columns as u64, width))
                    .collect();
                for (row, elements) in (first_row..).zip(read(view)?.chunks(piece_columns)) {
                    let first = part_of(row as u64, once_rows as u64, height) * width;
                    for (&column, &number) in block_of_column.iter().zip(elements) {
                        // NaN is never replaced.
                        if let Some(shown) = read_blocks.get_mut(first + column)
                            && (number.is_nan() || number.abs() > shown.abs())
                        {
                            *shown = number;
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
        let number = |(row, column)| read_blocks.get(at(row, height) * width + at(column, width)).copied();
        let numbers = all.map(|place| number(place).unwrap_or_default()).collect();
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
            if let Some(position) = read(part)?.iter().position(|number| number.is_nan()) {
                let within = unravel_index(position, part.size());
                return Ok(Some(piece.origin.iter().zip(within).map(|(from, at)| from + at).collect()));
            }
            progress(part.nbytes() as u64);
        }
    }
    Ok(None)
}

/// Returns the elements as numbers: the magnitude of a complex number, and of a pair the number of larger magnitude.
fn read(view: &Tensor) -> Result<Vec<f64>> {
    if !view.dtype().is_complex() && view.dtype() != DType::F4E2M1FNx2 {
        return view.to_dtype(DType::F64)?.read();
    }
    let number = |scalar| match scalar {
        Scalar::Complex(re, im) => f64::hypot(re, im),
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
    fn each_block_is_its_largest_element_and_nan_wins() {
        let mut elements: Vec<f32> = vec![0.; 6 * 4];
        (elements[1], elements[4], elements[23], elements[12], elements[17]) = (-3., 2., 1., f32::NAN, 9.);
        let matrix = Tensor::from_vec(elements, &[6, 4]).unwrap();
        let blocks = Blocks::of(&matrix, (3, 2), |_| ()).unwrap();
        assert_eq!((blocks.row_count, blocks.column_count, blocks.block_size), (3, 2, (2, 2)));
        assert_eq!((&blocks.numbers[..2], blocks.numbers[5]), (&[-3., 0.][..], 1.));
        assert!(blocks.numbers[2].is_nan());
    }

    #[test]
    fn matrix_of_several_pieces_is_reduced_like_a_whole() {
        let matrix = Tensor::from_vec((0..1_000_000i32).collect(), &[1000, 1000]).unwrap();
        let mut read_bytes = 0;
        let blocks = Blocks::of(&matrix.t().unwrap(), (4, 2), |bytes| read_bytes += bytes).unwrap();
        assert_eq!(blocks.numbers[..4], [499_249., 999_249., 499_499., 999_499.]);
        assert_eq!(read_bytes, 4_000_000);
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
        let blocks = Blocks::of(&many, (3, 2), |_| ()).unwrap();
        assert_eq!(
            (blocks.row_count, blocks.column_count, blocks.block_size),
            (3, 2, ((1 << 55) / 3 + 1, 2))
        );
        for row in blocks.numbers.chunks(2) {
            assert!(row[0] == -2. && row[1].is_nan());
        }
        let wide = Blocks::of(&many.t().unwrap(), (4, 3), |_| ()).unwrap();
        assert_eq!((wide.numbers[..3].to_vec(), wide.numbers[9]), (vec![1.; 3], 4.));
        assert_eq!(first_nan(&many, |_| ()).unwrap(), Some(vec![0, 2]));
        assert_eq!(first_nan(&many.t().unwrap(), |_| ()).unwrap(), Some(vec![2, 0]));
    }

    #[test]
    fn small_matrix_is_not_reduced() {
        let matrix = Tensor::from_vec(vec![1u8, 2, 3, 4], &[2, 2]).unwrap();
        assert_eq!(Blocks::of(&matrix, (80, 80), |_| ()).unwrap().numbers, [1., 2., 3., 4.]);
        let empty = Tensor::from_vec(Vec::<f32>::new(), &[0, 5]).unwrap();
        assert!(Blocks::of(&empty, (80, 80), |_| ()).unwrap().numbers.is_empty());
    }
}
