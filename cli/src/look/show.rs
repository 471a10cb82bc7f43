//! `show`: prints the elements of a view.

use std::io::{self, IsTerminal as _, Write};

use clap::ValueEnum;
use serde::Serialize;
use stridemap::{ErrorKind, PrintOptions, Result as LibraryResult, Scalar, Snapshot, Tensor};
use stridemap_interop::npy;

use crate::args::{External, Source};
use crate::at::split;
use crate::error::{Error, Result, output_error};
use crate::expr;
use crate::expr::Copies;
use crate::input::Input;
use crate::names::{command_line, shell_word};
use crate::pieces::{Cut, Piece, Pieces, steady};
use crate::scalar::{digits, text_of};
use crate::ui::{List, element, write_json};
use crate::undo::newest_tag_with;

/// Print the elements of a tensor or view
///
/// The text is that of PyTorch, with its width of lines, whatever the terminal's is: of more than 1000 elements, it shows those
/// at the edges, and of each number 4 digits after the decimal point. --format csv prints all elements with all their digits,
/// and each row is a line: a vector is printed as a column, and a tensor of more than two dimensions as all of its rows.
#[derive(clap::Args)]
#[command(after_help = expr::help(&["show model.smap 'encoder.weight[0, ::2]'"]))]
pub(crate) struct ShowArgs {
    /// The tensor or view; not needed if there is only one tensor
    #[arg(index = 2)]
    pub(crate) expr: Option<String>,
    /// Print all elements as PyTorch does, also of a tensor with more than 1000
    #[arg(long, conflicts_with_all = ["json", "format"])]
    all: bool,
    /// Print one JSON object with all elements in row-major order
    #[arg(long)]
    pub(crate) json: bool,
    /// Print all elements in another format
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<Format>,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Comma-separated values, with all their digits
    Csv,
    /// The bytes of a .npy file, for a pipe
    Npy,
}

/// The number of elements in memory at a time.
const PIECE_ELEMS: usize = 1 << 16;

pub(crate) fn run(args: &ShowArgs, out: &mut impl Write) -> Result<()> {
    if args.format == Some(Format::Npy) && io::stdout().is_terminal() {
        let why = "show: --format npy writes bytes that a terminal does not show; redirect the output to a file or a pipe";
        return Err(Error::Refused(why.to_owned()));
    }
    let source = args.source.open(&args.external.options())?;
    let expr = args.expr.clone().map_or_else(|| source.only_name("show"), Ok)?;
    let found = expr::view(&expr, &source, Copies::Allowed);
    let (name, view) = found.map_err(|e| with_tag(e, &expr, &source))?;
    let (view, _guard) = steady(&view)?;
    match args.format {
        Some(Format::Csv) => write_csv(&view, out),
        Some(Format::Npy) => npy::Export::new().write_to(out, &view, |_| ()).map_err(output_error),
        None if args.json => write_json(
            out,
            View {
                name: &name,
                dtype: view.dtype().name(),
                size: view.size(),
                stride: view.stride(),
                storage_offset: view.storage_offset(),
                values: List(|| Ok(elements(view.clone()).map(|it| it.map(element)))),
            },
        ),
        None => {
            let mut options = PrintOptions::default();
            if args.all {
                options.threshold = usize::MAX;
            }
            Ok(writeln!(out, "{}", view.to_text(&options)?)?)
        }
    }
}

/// Adds to the error that there is no such tensor which tag has one.
fn with_tag(e: Error, expr: &str, source: &Input) -> Error {
    match (&e, source) {
        (Error::Library(missing), Input::Store(store, _, path))
            if missing.kind() == ErrorKind::NameNotFound && split(path).is_none() =>
        {
            let has_it = |snapshot: &Snapshot| expr::view(expr, snapshot, Copies::Allowed).is_ok();
            let Some(tag) = newest_tag_with(store, has_it) else { return e };
            let at = format!("{}@{tag}", path.display());
            Error::Refused(format!(
                "{e}; {} has it: {}",
                shell_word(&tag),
                command_line("show", &[&at, expr])
            ))
        }
        _ => e,
    }
}

fn write_csv(view: &Tensor, out: &mut impl Write) -> Result<()> {
    let row_elems = if view.ndim() < 2 { 1 } else { view.size().last().copied().unwrap_or(1) };
    for (position, element) in (1..).zip(elements(view.clone())) {
        let end = if position % row_elems == 0 { '\n' } else { ',' };
        // No cell needs quotes.
        write!(out, "{}{end}", text_of(element?, |number| digits(number, view.dtype())))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct View<'a, T> {
    name: &'a str,
    dtype: &'static str,
    size: &'a [usize],
    stride: &'a [isize],
    storage_offset: usize,
    values: T,
}

/// Iterates over the elements in row-major order, read in pieces.
fn elements(view: Tensor) -> impl Iterator<Item = LibraryResult<Scalar>> {
    let scalars = |piece: Piece| piece.views.first().map_or(Ok(Vec::new()), Tensor::to_scalars);
    Pieces::of(vec![view], PIECE_ELEMS, Cut::Outermost).flat_map(move |piece| match piece.and_then(scalars) {
        Ok(elements) => elements.into_iter().map(Ok).collect(),
        Err(e) => vec![Err(e)],
    })
}
