//! `show`: prints the elements of a view.

use std::io::Write;

use serde::Serialize;
use stridemap::{Result as LibraryResult, Scalar, Tensor};

use crate::args::ShowArgs;
use crate::error::Result;
use crate::expr::{Copies, Expr};
use crate::output::{Element, List, write_json};
use crate::pieces::{Cut, Pieces};
use crate::source::Source;

/// The number of elements in memory at a time.
const PIECE_ELEMS: usize = 1 << 16;

pub(crate) fn run(args: &ShowArgs, out: &mut impl Write) -> Result<()> {
    let expr: Expr = args.expr.parse()?;
    let source = Source::open(&args.source, &args.reading, &args.external.options())?;
    let (name, view) = expr.view(|name| source.load(name), Copies::Allowed)?;
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
