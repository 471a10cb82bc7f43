//! `plot`: draws a matrix or a histogram in the terminal, or as an image.

mod figure;
mod png;
mod terminal;

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use indicatif::{HumanBytes, HumanCount};
use plotters::prelude::{BitMapBackend, SVGBackend};
use stridemap::Statistics;

use crate::args::{External, Source};
use crate::error::{Error, Result};
use crate::expr;
use crate::expr::Copies;
use crate::look::chart::{print_bars, short};
use crate::look::palette::Scale;
use crate::look::reduce::{Blocks, Reduction};
use crate::look::stats::sample_note;
use crate::names::one_line;
use crate::output_file::OutputFile;
use crate::pieces::steady;
use crate::ui::{has_color, message, page_width, progress};
use figure::{Drawing, Figure};

/// Draw a matrix as a heat map, or a histogram, in the terminal or as an image
///
/// Two dimensions are a heat map: blue below zero, white at zero and red above, or one hue if nothing is negative.
/// Of a large matrix, each block shows the mean of its elements, or with --as extremes the element of largest magnitude;
/// a block that has NaN shows NaN. The scale extends from the 1st to the 99th percentile of what is drawn. If that has
/// negative numbers, zero is the center of the scale, and its ends are plus and minus the 99th percentile of the
/// magnitudes. Infinities have the colors of the ends, and NaN is magenta. Without colors, the heat map has characters
/// from blank to @, and ? for NaN.
///
/// One dimension is a histogram, and with --as histogram so is any other.
///
/// With -o, the drawing is written as an image with its indices, its scale and a caption: a .png file of at most 1024 ×
/// 1024 blocks, or an .svg file of at most 256 × 256. The font of .png has Latin characters; others are drawn as boxes.
#[derive(clap::Args)]
#[command(after_help = expr::help(&["plot model.smap 'encoder.weight[0]'", "plot model.pt encoder.weight --as histogram", "plot model.pt encoder.weight -o weight.png"]))]
pub(crate) struct PlotArgs {
    /// The tensor or view; not needed if there is only one tensor
    #[arg(index = 2)]
    expr: Option<String>,
    /// What to draw instead of what suits the dimensions
    #[arg(long = "as", value_enum, value_name = "KIND")]
    kind: Option<Kind>,
    /// Write an image instead, as .png or .svg
    #[arg(short, long, value_name = "FILE.png")]
    out: Option<PathBuf>,
    /// Replace an existing image; without this it is refused
    #[arg(long, requires = "out")]
    force: bool,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    external: External,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A heat map, of which each block shows its element of largest magnitude
    Extremes,
    /// A histogram, whatever the dimensions are
    Histogram,
}

const BINS: usize = 30;

/// The maximum number of rows of a heat map in the terminal, so that it fits a screen.
const MAX_ROWS: usize = 40;

pub(crate) fn run(args: &PlotArgs, out: &mut impl Write) -> Result<()> {
    let new = |path| OutputFile::new("plot", path, &["png", "svg"], args.force);
    let file = args.out.as_deref().map(new).transpose()?;
    let input = args.source.open(&args.external.options())?;
    file.map_or(Ok(()), |file| file.check_unused(&input))?;
    let expr = args.expr.clone().map_or_else(|| input.only_name("plot"), Ok)?;
    let (_, view) = expr::view(&expr, &input, Copies::Allowed)?;
    let expr = one_line(&expr);
    let is_histogram = args.kind == Some(Kind::Histogram) || view.ndim() < 2;
    let size = match *view.size() {
        [rows, columns] => (rows, columns),
        _ if is_histogram => (0, 0),
        ref size => {
            let what = format!("plot: {expr} has {} dimensions, size {size:?}", size.len());
            let why = format!("{what}; select two, as in {expr}[0], or give --as histogram");
            return Err(Error::Refused(why));
        }
    };
    let (view, _guard) = steady(&view)?;
    let passes = if is_histogram { 1 } else { 2 };
    let bar = progress("plot", (view.nbytes() as u64).saturating_mul(passes));
    let statistics = view.statistics(|bytes| bar.inc(bytes))?;
    let (Some(min), Some(max)) = (statistics.quantile(0.), statistics.quantile(1.)) else {
        let why = format!("plot: {expr} has no finite element, size {:?}", view.size());
        return Err(Error::Refused(why));
    };
    let title = format!("{expr}  {}  {:?}", view.dtype(), view.size());
    if is_histogram {
        bar.finish_and_clear();
        let counts = statistics.histogram(BINS);
        let caption = histogram_caption(&statistics, (min, max));
        let Some(file) = file else {
            writeln!(out, "{title}\n")?;
            print_bars(&counts, (min, max), out)?;
            writeln!(out)?;
            return caption.iter().try_for_each(|line| Ok(writeln!(out, "{line}")?));
        };
        let drawing = Drawing::Histogram { counts: &counts, limits: (min, max) };
        return save(&expr, file, &Figure { title, caption, drawing });
    }
    let most_blocks = if let Some(file) = file {
        figure::most_blocks(size, is_svg(file))
    } else {
        let columns = page_width().saturating_sub(terminal::label_width(size.0) + 1);
        (MAX_ROWS, columns.max(1))
    };
    let reduction = if args.kind == Some(Kind::Extremes) { Reduction::Extreme } else { Reduction::Mean };
    let blocks = Blocks::of(&view, reduction, most_blocks, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let scale = Scale::of(&blocks.numbers);
    let is_colored = file.is_some() || has_color();
    let caption = heat_map_caption(&blocks, reduction, scale, &statistics, is_colored);
    if let Some(file) = file {
        let drawing = Drawing::HeatMap { blocks: &blocks, scale, size };
        return save(&expr, file, &Figure { title, caption, drawing });
    }
    writeln!(out, "{title}\n")?;
    terminal::print(&blocks, scale, size, is_colored, out)?;
    writeln!(out)?;
    for line in caption {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn is_svg(file: OutputFile<'_>) -> bool {
    file.path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"))
}

fn save(expr: &str, file: OutputFile<'_>, figure: &Figure<'_>) -> Result<()> {
    let (width, height) = figure.size();
    let size_bytes = file.write(|out| {
        if is_svg(file) {
            let mut text = String::new();
            figure.draw(SVGBackend::with_string(&mut text, (width, height)))?;
            return out.write_all(text.as_bytes());
        }
        let mut pixels = vec![0; width as usize * height as usize * 3];
        figure.draw(BitMapBackend::with_buffer(&mut pixels, (width, height)))?;
        png::write(&pixels, (width, height), figure.text(), out)
    })?;
    message(&format!(
        "plotted {expr} in {}: {width} × {height} pixels, {}",
        file.path.display(),
        HumanBytes(size_bytes)
    ));
    Ok(())
}

/// Says how elements became colors.
fn heat_map_caption(
    blocks: &Blocks,
    reduction: Reduction,
    scale: Scale,
    statistics: &Statistics,
    is_colored: bool,
) -> Vec<String> {
    let mut lines = vec![scale.caption(&blocks.numbers)];
    if blocks.block_size != (1, 1) {
        let rule = reduction.rule(blocks.block_size);
        let limits = [0., 1.].map(|fraction| statistics.quantile(fraction).map(short).unwrap_or_default());
        let [min, max] = limits;
        lines.push(format!("{rule}, which are from {min} to {max}"));
    }
    if statistics.nan_count > 0 {
        let shown = if is_colored { "magenta" } else { "?" };
        lines.push(format!("{} NaN, shown as {shown}", HumanCount(statistics.nan_count)));
    }
    let ends = if is_colored { "the colors of the ends" } else { "the ends of the scale" };
    lines.extend(infinities(statistics).map(|counts| format!("{counts}, shown as {ends}")));
    lines
}

/// Returns the numbers of infinities by sign, if there are any.
fn infinities(statistics: &Statistics) -> Option<String> {
    let counts = [(statistics.positive_infinity_count, "inf"), (statistics.negative_infinity_count, "-inf")];
    let counts = counts.into_iter().filter(|&(count, _)| count > 0);
    let counts: Vec<_> = counts.map(|(count, what)| format!("{} {what}", HumanCount(count))).collect();
    (!counts.is_empty()).then(|| counts.join(" and "))
}

fn histogram_caption(statistics: &Statistics, (min, max): (f64, f64)) -> Vec<String> {
    let finite = HumanCount(statistics.finite_count());
    let mut lines = vec![format!("{finite} finite elements from {} to {}", short(min), short(max))];
    let nan = (statistics.nan_count > 0).then(|| format!("{} NaN", HumanCount(statistics.nan_count)));
    lines.extend(nan.into_iter().chain(infinities(statistics)).map(|counts| format!("{counts}, not shown")));
    lines.extend(sample_note(statistics));
    lines
}
