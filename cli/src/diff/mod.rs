//! `diff`: compares the tensors of two stores or files, by name.

mod comparison;
mod elements;
mod finding;
mod headers;
mod norms;
mod pairs;
mod report;
mod values;

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;

use crate::args::{External, Reading};
use crate::error::{Error, Result};
use crate::input::Input;
use crate::ui::{counted, examples, progress};
use comparison::Diff;
use headers::Sharing;
use pairs::Selection;

/// Compare the tensors of two stores or files, by name
///
/// Two tensors are equal if their dtypes, sizes and values are equal. Values are compared exactly, unless --rtol
/// or --atol allows a difference: |a - b| <= atol + rtol * |b|, as in numpy.allclose. NaN equals only NaN, and
/// -0.0 equals 0.0. Strides, shared bytes, dimension names and attributes are compared only with --strict;
/// without it, differing attributes are listed, and the summary counts tensors that share bytes in one of both only, but
/// neither counts as a difference. In a file whose format has
/// no names, such as .npy, a tensor is named after the file; two such tensors are compared whatever their names.
///
/// Each line shows a tensor that is only in A (-), only in B (+) or different (~), or an attribute that differs
/// (@). The last line is a summary. Exit code: 0 if there is no difference, 1 if there is one, 2 after an error.
/// If a tensor cannot be read, the others are still compared.
#[derive(clap::Args)]
#[command(after_help = examples(&["diff model.safetensors model.smap", "diff model.smap@v1 model.smap@v2 'encoder.*'", "diff model.smap model.smap --prefix old.=new.", "diff before.pt after.pt --rtol 1e-5 --json | jq .equal"]))]
pub(crate) struct DiffArgs {
    /// The first store, tagged generation (STORE@TAG), or file
    pub(crate) a: PathBuf,
    /// The second
    pub(crate) b: PathBuf,
    /// Compare only these tensors, by name, by glob ('*.weight') or by prefix ('encoder.'), and no attributes
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Compare the tensors whose names begin with P, by the rest of their names, and no attributes; with P=Q, their names begin
    /// with P in A, and with Q in B
    #[arg(long, value_name = "P[=Q]", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Compare values of different dtypes, cast to the wider; different dtypes are then no difference
    #[arg(long)]
    cast: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a table of the tensors whose values differ: how many elements, by how much at most, the RMS of the differences,
    /// their norm relative to that of B, and the cosine between A and B
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Sort by name, or by change: the relative norm, largest first
    #[arg(long, value_enum, value_name = "KEY", default_value_t = Sort::Name)]
    sort: Sort,
    /// Compare only names, dtypes and sizes; read no elements
    #[arg(long, conflicts_with_all = ["rtol", "atol", "long", "sort"])]
    pub(crate) no_values: bool,
    /// Also compare strides, which tensors share bytes, dimension names and attributes
    #[arg(long, conflicts_with_all = ["names", "prefix"])]
    pub(crate) strict: bool,
    /// Largest difference, relative to the value in B
    #[arg(long, value_name = "R", default_value = "0", hide_default_value = true, value_parser = parse_tolerance)]
    pub(crate) rtol: f64,
    /// Largest absolute difference
    #[arg(long, value_name = "T", default_value = "0", hide_default_value = true, value_parser = parse_tolerance)]
    pub(crate) atol: f64,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Name,
    Change,
}

impl DiffArgs {
    /// Whether norms of the differences are needed, for which all elements are read as numbers.
    fn needs_norms(&self) -> bool {
        self.long || self.sort == Sort::Change
    }
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0. ..f64::INFINITY).contains(&x) => Ok(x),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// Runs the command. Returns whether no difference was found.
pub(crate) fn run(args: &DiffArgs, out: &mut impl Write) -> Result<bool> {
    let open = |path| Input::open(path, &args.reading, &args.external.options());
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let selection = Selection::of(args, &a, &b)?;
    let mut size_bytes = 0u64;
    if !args.no_values {
        for tensor in a.tensors(&selection.prefix_a)? {
            let tensor = tensor?;
            if selection.contains(&tensor.name[selection.prefix_a.len()..]) {
                size_bytes = size_bytes.saturating_add(tensor.header.nbytes() as u64);
            }
        }
    }
    let sharing = match (args.strict, selection.is_partial()) {
        (true, _) => Some(Sharing::of(&a, &b)?),
        (false, true) => None,
        (false, false) => Sharing::if_any(&a, &b)?,
    };
    let diff = Diff {
        a: &a,
        b: &b,
        args,
        selection,
        sharing,
        tally: RefCell::default(),
        bar: progress("diff", size_bytes),
    };
    match args.json {
        true => report::print_json(&diff, out)?,
        false => report::print_text(&diff, out)?,
    }
    diff.bar.finish_and_clear();
    out.flush()?;
    let tally = diff.tally.into_inner();
    if tally.failed > 0 {
        let failed = counted(tally.failed, "tensor");
        return Err(Error::Refused(format!("diff: {failed} could not be compared; the others were")));
    }
    // Two files are not found equal if a part of one was not seen.
    let unreadable = a.unreadable_count() + b.unreadable_count();
    if unreadable > 0 {
        let unreadable = counted(unreadable as u64, "value");
        let why = format!("diff: {unreadable} could not be read; the others were compared");
        return Err(Error::Refused(why));
    }
    Ok(tally.difference_count() == 0)
}
