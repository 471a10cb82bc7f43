//! The terminal: its width, and the options for all output.

use std::env;
use std::io;
use std::sync::OnceLock;

use anstream::AutoStream;
use anstyle::Style;
use clap::ColorChoice;
use rustix::termios::tcgetwinsize;

/// The maximum width of a line of help text. Longer lines are hard to read.
const MAX_HELP_WIDTH: usize = 100;

pub(crate) const BOLD: Style = Style::new().bold();

// The options that every command has.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Global {
    /// When to use color; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    color: ColorChoice,
    /// Print errors and warnings, but no notes and no progress
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Print more details
    #[arg(short, long, global = true)]
    verbose: bool,
}

static GLOBAL: OnceLock<Global> = OnceLock::new();

impl Global {
    /// Makes these the options of the process.
    pub(crate) fn apply(self) {
        GLOBAL.get_or_init(|| self);
    }
}

/// Returns whether notes are left out.
pub(crate) fn is_quiet() -> bool {
    GLOBAL.get().is_some_and(|global| global.quiet)
}

/// Returns whether more details are printed.
pub(crate) fn is_verbose() -> bool {
    GLOBAL.get().is_some_and(|global| global.verbose)
}

/// Returns the width that output must fit: `STRIDEMAP_COLUMNS`, or on a terminal `COLUMNS` or the terminal's width.
/// Without `STRIDEMAP_COLUMNS`, output to a pipe or a file has no width.
pub(crate) fn width() -> Option<usize> {
    let columns = |name| env::var(name).ok().and_then(|text| text.parse().ok()).filter(|&width| width > 0);
    let terminal = || {
        let size = tcgetwinsize(io::stdout()).ok()?;
        columns("COLUMNS").or(Some(size.ws_col.into())).filter(|&width| width > 0)
    };
    columns("STRIDEMAP_COLUMNS").or_else(terminal)
}

/// Returns the height of the terminal: `LINES`, or that of the terminal. `None` if standard output is not a terminal.
pub(crate) fn height() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    let lines = env::var("LINES").ok().and_then(|text| text.parse().ok());
    lines.or(Some(size.ws_row.into())).filter(|&height| height > 0)
}

/// Returns the width of drawings, which need one in a pipe too.
pub(crate) fn page_width() -> usize {
    width().unwrap_or(80)
}

/// The space between two columns on a terminal.
pub(crate) const GAP: &str = "  ";

/// Returns what separates the parts of a line: spaces on a terminal, and a tab in a pipe.
pub(crate) fn gap() -> &'static str {
    if width().is_some() { GAP } else { "\t" }
}

/// Returns the width of help texts.
pub(crate) fn help_width() -> usize {
    width().map_or(MAX_HELP_WIDTH, |width| width.min(MAX_HELP_WIDTH))
}

/// Returns the part of a help text that shows examples: arguments of this program.
pub(crate) fn examples(examples: &[&str]) -> String {
    let lines = examples.iter().map(|example| format!("\n  stridemap {example}"));
    format!("Example{}:{}", if examples.len() == 1 { "" } else { "s" }, lines.collect::<String>())
}

/// Returns the text in a style, or as it is if standard output has no colors.
pub(crate) fn paint(style: Style, text: &str) -> String {
    if has_color() { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// Returns whether standard output has colors.
pub(crate) fn has_color() -> bool {
    match GLOBAL.get().map_or(ColorChoice::Never, |global| global.color) {
        ColorChoice::Auto => AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never,
        ColorChoice::Always => true,
        ColorChoice::Never => false,
    }
}
