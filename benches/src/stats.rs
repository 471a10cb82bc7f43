//! Medians and quartiles.

use serde::Serialize;

/// The median and the quartiles of the measures of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Quartiles {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Quartiles {
    /// The measures are not empty.
    pub(crate) fn of(measures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = measures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Quartiles {
            low: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            high: quantile(&sorted, 0.75),
        }
    }
}

/// Interpolates between the two nearest values, as NumPy does.
pub(crate) fn quantile(sorted: &[f64], at: f64) -> f64 {
    let place = at * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(low), Some(high)) => low + (high - low) * place.fract(),
        _ => f64::NAN,
    }
}
