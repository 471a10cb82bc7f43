//! Small heat maps, as in `plot`.

use serde::Serialize;
use stridemap::{Result, Tensor, TensorInfo};

use crate::look::palette::Scale;
use crate::look::reduce::{Blocks, Reduction};

/// The maximum number of rows and columns.
const MAX_SIDE: usize = 48;

/// The code of a cell that is NaN. Codes from 0 to 254 are values from `low` to `high`.
const NAN: u8 = 255;

#[derive(Serialize)]
pub(super) struct HeatMap {
    rows: usize,
    columns: usize,
    low: f64,
    high: f64,
    is_signed: bool,
    /// The number of rows and columns of the largest block.
    block: (usize, usize),
    /// One code for each cell, as two hexadecimal digits.
    cells: String,
}

impl HeatMap {
    /// Reads the elements, and calls `progress` between pieces. Returns `None` for a tensor that has too few elements,
    /// or that cannot be viewed as a matrix without a copy.
    pub(super) fn of(tensor: &Tensor, mut progress: impl FnMut()) -> Result<Option<Self>> {
        let Some((rows, columns)) = shape(tensor.size(), tensor.numel()) else { return Ok(None) };
        let Ok(matrix) = tensor.view([rows, columns]) else { return Ok(None) };
        let blocks = Blocks::of(&matrix, Reduction::Mean, (MAX_SIDE, MAX_SIDE), |_| progress())?;
        let scale = Scale::of(&blocks.numbers);
        let code = |&number: &f64| scale.place(number).map_or(NAN, |place| (place * 254.).round() as u8);
        let (low, high) = scale.limits();
        Ok(Some(HeatMap {
            rows: blocks.row_count,
            columns: blocks.column_count,
            low,
            high,
            is_signed: matches!(scale, Scale::Signed(_)),
            block: blocks.block_size,
            cells: blocks.numbers.iter().map(|number| format!("{:02x}", code(number))).collect(),
        }))
    }

    /// Returns about how many bytes of the page a heat map takes. `None` if the tensor has too few elements for one.
    pub(super) fn size_bytes(info: &TensorInfo) -> Option<usize> {
        let (rows, columns) = shape(info.header.size(), info.header.numel())?;
        Some(2 * rows.min(MAX_SIDE) * columns.min(MAX_SIDE) + 100)
    }
}

/// Returns the size of a tensor as a matrix of its first dimension and the rest. `None` if it has too few elements for
/// a heat map.
fn shape(size: &[usize], numel: usize) -> Option<(usize, usize)> {
    match *size {
        [n] if n >= 16 => Some((1, n)),
        [first, _, ..] if numel >= 16 => Some((first, numel / first)),
        _ => None,
    }
}
