//! `show`: the elements of a view.

use std::io::Write;

use serde::Serialize;
use stridemap::{Result as LibraryResult, Scalar, Tensor};

use crate::args::ShowArgs;
use crate::error::Result;
use crate::expr::{Copies, Expr};
use crate::output::{Element, List, write_json};

/// How many elements are in memory at a time.
const PIECE_ELEMS: usize = 1 << 16;

pub(crate) fn run(args: &ShowArgs, out: &mut impl Write) -> Result<()> {
    let expr: Expr = args.expr.parse()?;
    let store = args.external.options().open(&args.store)?;
    let (name, view) = expr.view(|name| store.load(name), Copies::Allowed)?;
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

/// The elements in row-major order, read a piece at a time.
fn elements(view: Tensor) -> impl Iterator<Item = LibraryResult<Scalar>> {
    let mut rest = vec![view];
    let pieces = std::iter::from_fn(move || next_piece(&mut rest).transpose());
    pieces.flat_map(|piece| match piece {
        Ok(elements) => elements.into_iter().map(Ok).collect(),
        Err(e) => vec![Err(e)],
    })
}

/// Reads the last of the views that are left, or halves it until it is small enough.
fn next_piece(rest: &mut Vec<Tensor>) -> LibraryResult<Option<Vec<Scalar>>> {
    while let Some(view) = rest.pop() {
        if view.numel() <= PIECE_ELEMS {
            return view.to_scalars().map(Some);
        }
        // The axes before the one that is cut have size 1, so that the halves follow each other.
        let (axis, n) = (0..).zip(view.size().iter().copied()).find(|&(_, n)| n > 1).unwrap_or((0, 1));
        let half = n / 2;
        rest.push(view.narrow(axis, half as isize, n - half)?);
        rest.push(view.narrow(axis, 0, half)?);
    }
    Ok(None)
}
