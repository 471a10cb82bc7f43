//! `plot`: draws matrices, histograms and the history of tensors in the terminal, or as an image.

mod figure;
mod grid;
mod image;
mod lines;
mod over;
mod panel;
mod surface;
mod terminal;

use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use stridemap::Tensor;

use crate::args::{External, Source};
use crate::error::{Error, Result};
use crate::expr;
use crate::input::{Input, open_to_look};
use crate::look::targets::targets;
use crate::names::{one_line, pattern};
use crate::output_file::OutputFile;
use crate::ui::{counted, has_color, height, message, page_width, progress, warn};
use figure::{Figure, Panel};
use panel::{Kind, matrix_size};
use surface::Surface;

/// Draw heat maps, histograms, or tensors over time, in the terminal or as an image
///
/// Two dimensions are a heat map: blue below zero, white at zero and red above, or one hue if nothing is negative.
/// Of a large matrix, each block shows the mean of its elements, or with --as extremes the element of largest magnitude;
/// a block that has NaN shows NaN. The scale extends from the 1st to the 99th percentile of what is drawn. If that has
/// negative numbers, zero is the center of the scale, and its ends are plus and minus the 99th percentile of the
/// magnitudes. Infinities have the colors of the ends, and NaN is magenta. Without colors, the heat map has characters
/// from blank to @, and ? for NaN.
///
/// One dimension is a histogram, and with --as histogram so is any other. Several tensors are drawn beside each other, as
/// far as the width allows, each with a scale of its own.
///
/// With --over, lines show the minimum, the mean and the maximum in each generation that has one of these tags: '*' also
/// selects the newest one. Where the tensor is missing, the lines have a gap. If a generation cannot be read, the others
/// are still drawn, and the exit code is 2.
///
/// With -o, the drawing is written as an image with its indices, its scale and a caption: a .png file of at most 1024 ×
/// 1024 blocks, or an .svg file of at most 256 × 256; if there are several drawings, the row of them has so many. The font of .png has Latin characters; others are drawn as boxes.
#[derive(clap::Args)]
#[command(after_help = expr::help(&["plot model.smap 'encoder.weight[0]'", "plot model.pt encoder.weight --as histogram", "plot model.pt 'layers.?.weight' -o weights.png", "plot model.smap encoder.weight --over 'step*'"]))]
pub(crate) struct PlotArgs {
    /// Views, names, globs such as '*.weight', or prefixes such as 'encoder.'; not needed if there is only one tensor
    #[arg(index = 2, value_name = "EXPR|GLOB|PREFIX")]
    select: Vec<String>,
    /// What to draw instead of what suits the dimensions
    #[arg(long = "as", value_enum, value_name = "KIND", conflicts_with = "over")]
    kind: Option<Kind>,
    /// Draw the minimum, mean and maximum over the generations with these tags: a name, a glob such as 'step*', or a
    /// prefix such as 'run.'
    #[arg(long, value_name = "TAGS")]
    over: Option<String>,
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

/// The maximum number of drawings in a figure.
const MAX_PANELS: usize = 16;

/// The number of lines of a drawing where there is no terminal.
const LINES: usize = 40;

/// The lines of the terminal that a drawing leaves for the title, the caption and the prompt, and its minimum height.
const OTHER_LINES: usize = 9;
const LEAST_LINES: usize = 6;

pub(crate) fn run(args: &PlotArgs, out: &mut impl Write) -> Result<()> {
    let new = |path| OutputFile::new("plot", path, &["png", "svg"], args.force);
    let file = args.out.as_deref().map(new).transpose()?;
    let (panels, unreadable) = match &args.over {
        Some(tags) => over(args, tags, file)?,
        None => (drawings(args, file)?, Vec::new()),
    };
    let note = (panels.len() > 1).then_some("each drawing has a scale of its own");
    let figure = Figure { panels, note };
    match file {
        Some(file) => save(&figure, file)?,
        None => terminal::print(&figure, page_width(), has_color(), out)?,
    }
    out.flush()?;
    unreadable.iter().for_each(|why| warn(&format!("plot: {why}")));
    match unreadable.is_empty() {
        true => Ok(()),
        false => Err(Error::Refused("plot: not all generations could be read".to_owned())),
    }
}

/// Returns the drawings of the selected tensors and views.
fn drawings(args: &PlotArgs, file: Option<OutputFile<'_>>) -> Result<Vec<Panel>> {
    let input = args.source.open(&args.external.options())?;
    file.map_or(Ok(()), |file| file.check_unused(&input))?;
    let select = selected(args, &input)?;
    let (targets, _) = targets("plot", &select, &input)?;
    check_count(targets.len())?;
    let views = targets.iter().map(|target| Ok((one_line(&target.label), target.load(&input)?)));
    let views: Vec<(String, Tensor)> = views.collect::<Result<_>>()?;
    let surface = surface(file, views.len());
    let mut total_bytes = 0u64;
    for (expr, view) in &views {
        // A heat map reads the elements twice.
        let passes = if matrix_size(expr, view, args.kind)?.is_some() { 2 } else { 1 };
        total_bytes = total_bytes.saturating_add((view.nbytes() as u64).saturating_mul(passes));
    }
    let bar = progress("plot", total_bytes);
    let panel = |(expr, view): &(String, Tensor)| Panel::of(expr, view, args.kind, surface, |n| bar.inc(n));
    let panels = views.iter().map(panel).collect();
    bar.finish_and_clear();
    panels
}

/// Returns the drawings of tensors over generations, and the reasons for what cannot be read.
fn over(args: &PlotArgs, tags: &str, file: Option<OutputFile<'_>>) -> Result<(Vec<Panel>, Vec<String>)> {
    let store = open_to_look(&args.external.options(), &args.source.path)?;
    let input = Input::Store(store.clone(), store.snapshot(), args.source.path.clone());
    file.map_or(Ok(()), |file| file.check_unused(&input))?;
    let select = selected(args, &input)?;
    let is_pattern = |text: &String| Ok(!pattern(text, &input)?.is_name());
    let exprs = match select.iter().map(is_pattern).collect::<Result<Vec<_>>>()?.contains(&true) {
        true => targets("plot", &select, &input)?.0.into_iter().map(|target| target.label).collect(),
        // A tensor may be in earlier generations only.
        false => select,
    };
    check_count(exprs.len())?;
    let bar = progress("plot", 0);
    let found = over::panels(&exprs, &store, tags, surface(file, exprs.len()), |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    found
}

/// Returns the arguments that select tensors, or the name of the only tensor.
fn selected(args: &PlotArgs, input: &Input) -> Result<Vec<String>> {
    match args.select.is_empty() {
        true => Ok(vec![input.only_name("plot")?]),
        false => Ok(args.select.clone()),
    }
}

fn check_count(count: usize) -> Result<()> {
    match count > MAX_PANELS {
        true => {
            let count = counted(count as u64, "tensor");
            let why = format!("{count} are selected, and a figure has at most {MAX_PANELS}; select fewer");
            Err(Error::Refused(format!("plot: {why}")))
        }
        false => Ok(()),
    }
}

fn surface(file: Option<OutputFile<'_>>, panel_count: usize) -> Surface {
    match file {
        Some(file) => image::surface(panel_count, is_svg(file)),
        None => {
            let (_, width) = terminal::columns(panel_count, page_width());
            let lines = height().map_or(LINES, |height| height.saturating_sub(OTHER_LINES).max(LEAST_LINES));
            Surface::Terminal { width, lines, has_color: has_color() }
        }
    }
}

fn is_svg(file: OutputFile<'_>) -> bool {
    file.path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"))
}

fn save(figure: &Figure, file: OutputFile<'_>) -> Result<()> {
    let mut size = (0, 0);
    let size_bytes = file.write(|out| {
        size = image::write(figure, is_svg(file), out)?;
        Ok(())
    })?;
    let what = match &figure.panels[..] {
        [panel] => panel.expr.clone(),
        panels => counted(panels.len() as u64, "drawing"),
    };
    let ((width, height), size_bytes) = (size, HumanBytes(size_bytes));
    message(&format!("plotted {what} in {}: {width} × {height} pixels, {size_bytes}", file.path.display()));
    Ok(())
}
