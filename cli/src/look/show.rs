//! `show`: prints the elements of a view.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use stridemap::{Result as LibraryResult, Scalar, Tensor};

use crate::args::{External, Reading};
use crate::error::Result;
use crate::expr;
use crate::expr::Copies;
use crate::input::Input;
use crate::pieces::{Cut, Pieces};
use crate::ui::{Element, List, write_json};

/// Print the elements of a tensor or view
#[derive(clap::Args)]
#[command(after_help = expr::help("show model.smap 'encoder.weight[0, ::2]'"))]
pub(crate) struct ShowArgs {
    /// The store, or a file in another format, detected from its content
    #[arg(value_name = "STORE|FILE")]
    pub(crate) source: PathBuf,
    /// The tensor or view
    pub(crate) expr: String,
    /// Print one JSON object with all elements in row-major order
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) external: External,
}

/// The number of elements in memory at a time.
const PIECE_ELEMS: usize = 1 << 16;

pub(crate) fn run(args: &ShowArgs, out: &mut impl Write) -> Result<()> {
    let source = Input::open(&args.source, &args.reading, &args.external.options())?;
    let (name, view) = expr::view(&args.expr, &source, Copies::Allowed)?;
    if args.json {
        write_json(
            out,
            View {
                name: &name,
                dtype: view.dtype().name(),
                size: view.size(),
                stride: view.stride(),
                storage_offset: view.storage_offset(),
                values: List(|| Ok(elements(view.clone()).map(|element| element.map(Element)))),
            },
        )
    } else {
        Ok(writeln!(out, "{}", view.to_text()?)?)
    }
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
    let pieces = Pieces::of(vec![view], PIECE_ELEMS, Cut::Outermost).flat_map(|piece| match piece {
        Ok(piece) => piece.views.into_iter().map(Ok).collect(),
        Err(e) => vec![Err(e)],
    });
    pieces.flat_map(|piece| match piece.and_then(|piece: Tensor| piece.to_scalars()) {
        Ok(elements) => elements.into_iter().map(Ok).collect(),
        Err(e) => vec![Err(e)],
    })
}
