//! What is drawn of one tensor or view.

use clap::ValueEnum;
use indicatif::HumanCount;
use stridemap::{Statistics, Tensor};

use super::figure::{Drawing, HeatMap, Histogram, Panel};
use super::surface::Surface;
use crate::error::{Error, Result};
use crate::look::chart::short;
use crate::look::palette::Scale;
use crate::look::reduce::{Blocks, Reduction};
use crate::look::stats::sample_note;
use crate::pieces::steady;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A heat map whose blocks show their elements of largest magnitude
    Extremes,
    /// A histogram, whatever the dimensions are
    Histogram,
}

impl Panel {
    /// Reads the elements of a view, and calls `progress` with the bytes read since the last call. `expr` is the
    /// expression, for the title and for errors.
    pub(super) fn of(
        expr: &str,
        view: &Tensor,
        kind: Option<Kind>,
        surface: Surface,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let size = matrix_size(expr, view, kind)?;
        let (view, _guard) = steady(view)?;
        let statistics = view.statistics(&mut progress)?;
        let (Some(min), Some(max)) = (statistics.quantile(0.), statistics.quantile(1.)) else {
            let why = format!("plot: {expr} has no finite element, size {:?}", view.size());
            return Err(Error::Refused(why));
        };
        let title = format!("{expr}  {}  {:?}", view.dtype(), view.size());
        let Some(size) = size else {
            let counts = statistics.histogram(surface.bin_count());
            let drawing = Drawing::Histogram(Histogram { counts, limits: (min, max) });
            return Ok(Panel {
                expr: expr.to_owned(),
                title,
                drawing,
                caption: histogram_caption(&statistics, (min, max)),
            });
        };
        let reduction = if kind == Some(Kind::Extremes) { Reduction::Extreme } else { Reduction::Mean };
        let grid = surface.grid(size);
        let blocks = Blocks::of(&view, reduction, (grid.rows, grid.columns), progress)?;
        let map = HeatMap { scale: Scale::of(&blocks.numbers), blocks, size, grid };
        let caption = heat_map_caption(&map, reduction, &statistics, (min, max), surface);
        Ok(Panel { expr: expr.to_owned(), title, drawing: Drawing::HeatMap(map), caption })
    }
}

/// Returns the size of the matrix to draw, or `None` for a histogram. Refuses a view of more than two dimensions.
pub(super) fn matrix_size(expr: &str, view: &Tensor, kind: Option<Kind>) -> Result<Option<(usize, usize)>> {
    match *view.size() {
        _ if kind == Some(Kind::Histogram) => Ok(None),
        [] | [_] if kind == Some(Kind::Extremes) => {
            let why = "has no two dimensions, so it is drawn as a histogram, which has no blocks; leave out --as extremes";
            Err(Error::Refused(format!("plot: {expr} {why}")))
        }
        [] | [_] => Ok(None),
        [rows, columns] => Ok(Some((rows, columns))),
        ref size => {
            let what = format!("plot: {expr} has {} dimensions, size {size:?}", size.len());
            let first = vec!["0"; size.len() - 2].join(", ");
            let why = format!("{what}; select two, as in {expr}[{first}], or give --as histogram");
            Err(Error::Refused(why))
        }
    }
}

/// Says how elements became colors.
fn heat_map_caption(
    map: &HeatMap,
    reduction: Reduction,
    statistics: &Statistics,
    (min, max): (f64, f64),
    surface: Surface,
) -> Vec<String> {
    let mut lines = vec![map.scale.caption(&map.blocks.numbers)];
    lines.extend(surface.legend(map.scale).map(str::to_owned));
    let has_color = surface.has_color();
    if map.blocks.block_size != (1, 1) {
        let rule = reduction.rule(map.blocks.block_size);
        lines.push(format!("{rule}, which are from {} to {}", short(min), short(max)));
    }
    if !map.grid.is_to_scale {
        lines.push("rows and columns are not drawn to the same scale".to_owned());
    }
    let (nan, ends) =
        if has_color { ("magenta", "the colors of the ends") } else { ("?", "the ends of the scale") };
    lines.extend(nan_count(statistics).map(|count| format!("{count}, shown as {nan}")));
    lines.extend(infinity_counts(statistics).map(|counts| format!("{counts}, shown as {ends}")));
    lines
}

fn histogram_caption(statistics: &Statistics, (min, max): (f64, f64)) -> Vec<String> {
    let finite = HumanCount(statistics.finite_count());
    let mut lines = vec![format!("{finite} finite elements from {} to {}", short(min), short(max))];
    let others = nan_count(statistics).into_iter().chain(infinity_counts(statistics));
    lines.extend(others.map(|counts| format!("{counts}, not shown")));
    lines.extend(sample_note(statistics));
    lines
}

/// Returns the number of NaN, if there are any.
fn nan_count(statistics: &Statistics) -> Option<String> {
    (statistics.nan_count > 0).then(|| format!("{} NaN", HumanCount(statistics.nan_count)))
}

/// Returns the numbers of infinities by sign, if there are any.
fn infinity_counts(statistics: &Statistics) -> Option<String> {
    let counts = [(statistics.positive_infinity_count, "inf"), (statistics.negative_infinity_count, "-inf")];
    let counts = counts.into_iter().filter(|&(count, _)| count > 0);
    let counts: Vec<_> = counts.map(|(count, what)| format!("{} {what}", HumanCount(count))).collect();
    (!counts.is_empty()).then(|| counts.join(" and "))
}
