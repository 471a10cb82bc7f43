//! `stats`: summarizes the elements of tensors and views.

use std::io::Write;

use clap::ValueEnum;
use indicatif::HumanCount;
use serde_json::{Value, json};
use stridemap::{Scalar, Statistics, Tensor};

use super::chart::{bars, short, sparkline};
use super::is_constant;
use super::reduce::first_nan;
use super::targets::{Target, targets};
use crate::args::{External, Source};
use crate::error::{Error, Result};
use crate::expr;
use crate::input::Input;
use crate::interrupt;
use crate::names::{one_line, quoted};
use crate::scalar::text_of;
use crate::ui::{Column, Progress, Table, counted, element, float, page_width, progress, warn, write_json};

/// Summarize the elements of tensors: count, extremes, mean, deviation, NaN, histogram
///
/// A single EXPR is shown in detail; otherwise, a table has a row for each tensor or view. NaN and infinities are
/// counted, and left out of the other numbers. std is the deviation of a sample, like that of PyTorch. Complex numbers
/// are summarized by their magnitudes. A histogram has bins of equal width between min and max.
///
/// Percentiles are interpolated linearly, as in numpy.quantile. For more than 1,048,576 elements, percentiles and
/// histograms are of a sample of that many.
///
/// If nothing matches a glob, the exit code is 1. If a tensor cannot be read, the others are still shown, and the exit
/// code is 2.
#[derive(clap::Args)]
#[command(after_help = expr::help(&["stats model.smap", "stats model.smap 'encoder.weight[0]'", "stats model.pt --non-finite --sort non-finite"]))]
pub(crate) struct StatsArgs {
    /// Views, names, globs such as '*.weight', or prefixes such as 'encoder.'; all tensors if none is given
    #[arg(index = 2, value_name = "EXPR|GLOB|PREFIX")]
    select: Vec<String>,
    /// Only tensors with NaN or infinities; exit with 1 if there are none
    #[arg(long, alias = "nan")]
    non_finite: bool,
    /// Sort by name, or by a number: min in ascending order, all others in descending order
    #[arg(long, value_enum, value_name = "KEY", default_value_t = Sort::Name)]
    sort: Sort,
    /// Print one JSON object per tensor
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    external: External,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Name,
    NonFinite,
    Min,
    Max,
    Mean,
    Std,
}

/// The number of bins in JSON.
const BINS: usize = 20;

/// The number of bins in the details, which fit a low terminal.
const SHOWN_BINS: usize = 15;

/// The number of bins in a row of the table.
const SPARKLINE_BINS: usize = 10;

const COLUMNS: [Column; 9] = [
    // All numbers fit a terminal of 80 columns.
    Column::new("name").shortenable_names().down_to(12, 3),
    Column::new("dtype").drop_order(0),
    Column::new("size").shortenable().drop_order(1),
    Column::new("min").right(),
    Column::new("max").right(),
    Column::new("mean").right().drop_order(4),
    Column::new("std").right().drop_order(3),
    Column::new("histogram").drop_order(2),
    Column::new("notes"),
];

pub(crate) fn run(args: &StatsArgs, out: &mut impl Write) -> Result<()> {
    let input = args.source.open(&args.external.options())?;
    let (targets, is_one) = targets("stats", &args.select, &input)?;
    let total = targets.iter().map(|target| target.size_bytes).fold(0, u64::saturating_add);
    let bar = progress("stats", total);
    let (mut rows, mut records) = (Vec::new(), Vec::new());
    let (mut failed_count, mut found_count) = (0, 0);
    for target in &targets {
        let label = &target.label;
        let found = match Found::read(target, &input, &bar) {
            Ok(found) => found,
            Err(e) => {
                failed_count += 1;
                bar.suspend(|| warn(&format!("stats: {e}")));
                continue;
            }
        };
        if args.non_finite && found.statistics.nan_count + found.infinity_count() == 0 {
            continue;
        }
        found_count += 1;
        let key = args.sort.key(&found);
        match args.json {
            true if args.sort == Sort::Name => write_json(out, record(label, &found))?,
            true => records.push((key, record(label, &found))),
            false if is_one => print_details(label, &found, out)?,
            false => rows.push((key, row(label, &found))),
        }
    }
    bar.finish_and_clear();
    sorted(records).try_for_each(|record| write_json(out, record))?;
    let mut table = Table::new(&COLUMNS);
    sorted(rows).for_each(|row| table.add_row(row));
    table.print_data(out)?;
    out.flush()?;
    if failed_count > 0 {
        let all = counted(targets.len() as u64, "tensor");
        return Err(Error::Refused(format!("stats: {failed_count} of {all} could not be read")));
    }
    if args.non_finite && found_count == 0 {
        let path = args.source.path.display();
        return Err(Error::NoMatch(format!("stats {path}: no tensor has NaN or infinities")));
    }
    Ok(())
}

/// Iterates in descending order of the keys. Items with equal keys keep their order.
fn sorted<T>(mut keyed: Vec<(f64, T)>) -> impl Iterator<Item = T> {
    keyed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    keyed.into_iter().map(|(_, item)| item)
}

impl Sort {
    /// Returns the key of a tensor: the largest is first.
    fn key(self, found: &Found) -> f64 {
        let Found { statistics, .. } = found;
        let key = match self {
            Sort::Name => return 0.,
            Sort::NonFinite => return (statistics.nan_count + found.infinity_count()) as f64,
            Sort::Min => statistics.quantile(0.).map(|min| -min),
            Sort::Max => statistics.quantile(1.),
            Sort::Mean => statistics.mean(),
            Sort::Std => statistics.std(),
        };
        key.unwrap_or(f64::NEG_INFINITY)
    }
}

struct Found {
    tensor: Tensor,
    statistics: Statistics,
}

impl Found {
    fn read(target: &Target, input: &Input, bar: &Progress) -> Result<Self> {
        let tensor = target.load(input)?;
        // Unlike the error of `load`, this error does not name the tensor.
        let statistics = tensor
            .statistics(|bytes| bar.inc(bytes))
            .map_err(|e| Error::Refused(format!("{}: {e}", quoted(&target.label))))?;
        Ok(Found { tensor, statistics })
    }

    fn infinity_count(&self) -> u64 {
        self.statistics.positive_infinity_count + self.statistics.negative_infinity_count
    }
}

/// Returns what a reader should notice.
fn notes(found: &Found) -> Vec<String> {
    let Found { tensor, statistics } = found;
    let mut notes = Vec::new();
    for (count, what) in [(statistics.nan_count, "NaN"), (found.infinity_count(), "inf")] {
        if count > 0 {
            notes.push(format!("{} {what}", HumanCount(count)));
        }
    }
    if statistics.count == 0 {
        notes.push("empty".to_owned());
    } else if statistics.zero_count == statistics.count {
        notes.push("all zero".to_owned());
    } else if is_constant(tensor, statistics) {
        notes.push("constant".to_owned());
    }
    notes
}

fn row(label: &str, found: &Found) -> [String; COLUMNS.len()] {
    let Found { tensor, statistics } = found;
    let real = |number: Option<f64>| number.map(short).unwrap_or_default();
    let scalar = |scalar: Option<Scalar>| scalar.map(|scalar| text_of(scalar, short)).unwrap_or_default();
    [
        quoted(label).into_owned(),
        tensor.dtype().to_string(),
        format!("{:?}", tensor.size()),
        scalar(statistics.min),
        scalar(statistics.max),
        real(statistics.mean()),
        real(statistics.std()),
        sparkline(&statistics.histogram(SPARKLINE_BINS)),
        notes(found).join(", "),
    ]
}

fn print_details(label: &str, found: &Found, out: &mut impl Write) -> Result<()> {
    let Found { tensor, statistics } = found;
    let share = |count: u64| match count {
        0 => "0".to_owned(),
        _ => format!("{} ({:.3} %)", HumanCount(count), count as f64 / statistics.count as f64 * 100.),
    };
    let real = |number: Option<f64>| number.map_or("-".to_owned(), short);
    let scalar = |scalar: Option<Scalar>| scalar.map_or("-".to_owned(), |scalar| text_of(scalar, short));
    let quantile = |fraction| real(statistics.quantile(fraction));
    let first_nan = if statistics.nan_count > 0 { first_nan(tensor, |_| interrupt::check())? } else { None };
    let first_nan = first_nan.map(|index| format!(", first at {index:?}")).unwrap_or_default();
    let rows = [
        ("name", one_line(label)),
        ("dtype", tensor.dtype().to_string()),
        ("size", format!("{:?}", tensor.size())),
        ("count", HumanCount(statistics.count).to_string()),
        ("zeros", share(statistics.zero_count)),
        ("NaN", share(statistics.nan_count) + &first_nan),
        ("inf", share(statistics.positive_infinity_count)),
        ("-inf", share(statistics.negative_infinity_count)),
        ("min", scalar(statistics.min)),
        ("0.1 %", quantile(0.001)),
        ("median", quantile(0.5)),
        ("99.9 %", quantile(0.999)),
        ("max", scalar(statistics.max)),
        ("mean", real(statistics.mean())),
        ("std", real(statistics.std())),
        ("notes", notes(found).into_iter().chain(sample_note(statistics)).collect::<Vec<_>>().join(", ")),
    ];
    for (key, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "{key:<8}{value}")?;
    }
    if let (Some(min), Some(max)) = (statistics.quantile(0.), statistics.quantile(1.)) {
        writeln!(out)?;
        let lines = bars(&statistics.histogram(SHOWN_BINS), (min, max), page_width());
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(())
}

/// Says from how many elements the quantiles and the histogram are computed, if not from all.
pub(crate) fn sample_note(statistics: &Statistics) -> Option<String> {
    let count = statistics.sample_count;
    (count < statistics.finite_count())
        .then(|| format!("the percentiles and the histogram are of a sample of {}", HumanCount(count)))
}

/// Returns the statistics as JSON. `sample_count` is the number of elements from which the quantiles and the histogram are
/// computed. A quantile is a pair: a fraction, and the quantile of the finite elements.
fn record(name: &str, Found { tensor, statistics }: &Found) -> Value {
    let quantile = |fraction: f64| Some((fraction, float(statistics.quantile(fraction)?)));
    let quantiles: Vec<_> = [0.001, 0.5, 0.999].into_iter().filter_map(quantile).collect();
    json!({
        "name": name,
        "dtype": tensor.dtype().name(),
        "size": tensor.size(),
        "count": statistics.count,
        "nan_count": statistics.nan_count,
        "positive_infinity_count": statistics.positive_infinity_count,
        "negative_infinity_count": statistics.negative_infinity_count,
        "zero_count": statistics.zero_count,
        "min": statistics.min.map(element),
        "max": statistics.max.map(element),
        "mean": statistics.mean().map(float),
        "std": statistics.std().map(float),
        "sample_count": statistics.sample_count,
        "quantiles": quantiles,
        "histogram": statistics.histogram(BINS),
    })
}
