//! Elements as text.

use stridemap::{DType, Scalar};

/// Returns an element as text: `True`, `3`, `1-2j`, or `1 2` for a pair. `number` formats floats.
pub(crate) fn text_of(scalar: Scalar, number: impl Fn(f64) -> String) -> String {
    match scalar {
        Scalar::Bool(value) => if value { "True" } else { "False" }.to_owned(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Float(value) => number(value),
        Scalar::Complex(re, im) => {
            let im = number(im);
            let sign = if im.starts_with('-') { "" } else { "+" };
            format!("{}{sign}{im}j", number(re))
        }
        Scalar::Pair(low, high) => format!("{} {}", number(low), number(high)),
        other => format!("{other:?}"),
    }
}

/// Returns the fewest digits that distinguish a number from other `float32` numbers, or from other `float64` numbers if
/// the dtype is `float64` or `complex128`.
pub(crate) fn digits(number: f64, dtype: DType) -> String {
    let text = match dtype {
        DType::F64 | DType::C128 => format!("{number:?}"),
        _ => format!("{:?}", number as f32),
    };
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}
