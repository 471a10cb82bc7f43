//! `diff`: compares the tensors of two stores or files, by name.

mod elements;
mod headers;
mod norms;
mod pairs;
mod report;
mod values;

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use stridemap::{Header, Result as LibraryResult, Scalar, TensorInfo};

use crate::args::{External, Reading};
use crate::error::{Error, Result};
use crate::input::Input;
use crate::look::chart::short;
use crate::look::format_dim_names;
use crate::names::{Named as _, quoted};
use crate::pieces::unravel_index;
use crate::scalar::{digits, text_of};
use crate::ui::{Progress, counted, element, examples, float, gap, joined, progress, warn};
use elements::Tolerance;
use headers::{Sharing, have_equal_strides};
use pairs::{Pair, Selection, pairs};
use values::{Difference, Failure, Side, compare};

/// Compare the tensors of two stores or files, by name
///
/// Two tensors are equal if their dtypes, sizes and values are equal. Values are compared exactly, unless --rtol
/// or --atol allows a difference: |a - b| <= atol + rtol * |b|, as in numpy.allclose. NaN equals only NaN, and
/// -0.0 equals 0.0. Strides, shared bytes, dimension names and attributes are compared only with --strict;
/// without it, differing attributes are listed but do not count as a difference. In a file whose format has
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
    #[arg(long, value_name = "P[=Q]", default_value = "", hide_default_value = true, value_parser = parse_prefixes)]
    prefix: Prefixes,
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

/// The beginnings of the names that are compared.
#[derive(Clone)]
struct Prefixes {
    a: String,
    b: String,
}

fn parse_prefixes(text: &str) -> Result<Prefixes, Infallible> {
    let (a, b) = text.split_once('=').unwrap_or((text, text));
    Ok(Prefixes { a: a.to_owned(), b: b.to_owned() })
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
        for tensor in a.tensors(&args.prefix.a)? {
            let tensor = tensor?;
            if selection.contains(&tensor.name[args.prefix.a.len()..]) {
                size_bytes = size_bytes.saturating_add(tensor.header.nbytes() as u64);
            }
        }
    }
    let diff = Diff {
        a: &a,
        b: &b,
        args,
        selection,
        sharing: args.strict.then(|| Sharing::of(&a, &b)).transpose()?,
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

struct Diff<'a> {
    a: &'a Input,
    b: &'a Input,
    args: &'a DiffArgs,
    selection: Selection,
    /// Only with `--strict`.
    sharing: Option<Sharing>,
    tally: RefCell<Tally>,
    bar: Progress,
}

/// A difference or a failed comparison of a tensor.
#[derive(Serialize)]
struct Finding {
    name: String,
    kind: Kind,
    /// What else the JSON has.
    #[serde(flatten)]
    record: Value,
    /// What the line has after the name.
    #[serde(skip)]
    text: String,
    /// The cells of a table, if values differ and `-l` is given.
    #[serde(skip)]
    cells: Option<[String; 5]>,
    /// The relative norm of the change. A tensor that is not in both is sorted before all others.
    #[serde(skip)]
    change: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    OnlyInA,
    OnlyInB,
    Dtype,
    Size,
    Values,
    /// The strides or the names of the dimensions.
    Layout,
    /// The tensor shares bytes with another one only in A, or only in B.
    Sharing,
    /// The tensor shares bytes with another one in both, and the distance of their storage offsets differs.
    Offset,
    /// The tensor could not be compared. A message has already said so.
    Error,
}

impl Finding {
    fn new(info: &TensorInfo, kind: Kind, record: Value, text: String) -> Self {
        Finding { name: info.name.clone(), kind, record, text, cells: None, change: f64::INFINITY }
    }

    fn only(kind: Kind, info: &TensorInfo) -> Self {
        let (dtype, size) = (info.header.dtype().name(), info.header.size());
        let record = json!({ "dtype": dtype, "size": size });
        Finding::new(info, kind, record, format!("{dtype}{}{size:?}", gap()))
    }

    fn values([info, other]: [&TensorInfo; 2], difference: &Difference) -> Self {
        let (position, a, b) = difference.first;
        let (dtype, numel) = (info.header.dtype(), info.header.numel());
        let first = unravel_index(position, info.header.size());
        let mut text =
            format!("values differ in {} of {}", difference.count, counted(numel as u64, "element"));
        if difference.nan_count > 0 {
            text += &format!(", {} of them NaN on one side only", difference.nan_count);
        }
        let shown = |scalar, dtype| text_of(scalar, |number| digits(number, dtype));
        let (absolute, relative) = difference.largest.unzip();
        if let (Some(absolute), Some(relative)) = (absolute, relative) {
            let [absolute, relative] = [absolute, Scalar::Float(relative)].map(|it| text_of(it, short));
            text += &format!(", by at most {absolute} (relative {relative})");
        }
        text += &format!(", first at {first:?}: {}, {}", shown(a, dtype), shown(b, other.header.dtype()));
        let mut record = json!({
            "numel": numel,
            "differing": difference.count,
            "nan": difference.nan_count,
            "max_absolute": absolute.map(element),
            "max_relative": relative.map(float),
            "first": first,
            "a": element(a),
            "b": element(b),
        });
        let Some(norms) = difference.norms else { return Finding::new(info, Kind::Values, record, text) };
        let [rms, relative, cosine] = [norms.rms(), norms.relative(), norms.cosine()];
        record = joined(
            record,
            json!({ "rms": float(rms), "relative_norm": float(relative), "cosine": float(cosine) }),
        );
        let max = absolute.map(|absolute| text_of(absolute, short)).unwrap_or_default();
        let [rms, shown_relative, cosine] = [rms, relative, cosine].map(short);
        let cells = Some([difference.count.to_string(), max, rms, shown_relative, cosine]);
        Finding { cells, change: relative, ..Finding::new(info, Kind::Values, record, text) }
    }

    /// Compares the strides and the names of the dimensions.
    fn layout(info: &TensorInfo, a: &Header, b: &Header, is_stride_equal: bool) -> Option<Self> {
        let mut parts = Vec::new();
        if !is_stride_equal {
            parts.push(format!("stride {:?}, {:?}", a.stride(), b.stride()));
        }
        if a.dim_names() != b.dim_names() {
            let [a, b] = [a, b].map(|header| match header.dim_names() {
                None => "none".to_owned(),
                names => format_dim_names(names),
            });
            parts.push(format!("dimension names {a}, {b}"));
        }
        let [a, b] = [a, b].map(|header| {
            json!({
                "stride": header.stride(),
                "storage_offset": header.storage_offset(),
                "dim_names": header.dim_names(),
            })
        });
        let record = json!({ "a": a, "b": b });
        (!parts.is_empty()).then(|| Finding::new(info, Kind::Layout, record, parts.join("; ")))
    }
}

/// The number of tensors for each result.
#[derive(Default, Serialize)]
struct Tally {
    equal: u64,
    #[serde(skip)]
    equal_bytes: u64,
    different: u64,
    /// How many of the different tensors differ only in their layouts.
    #[serde(skip)]
    only_layout: u64,
    only_in_a: u64,
    only_in_b: u64,
    failed: u64,
    /// Tensors whose strides differ, whatever their result is.
    other_strides: u64,
    #[serde(skip)]
    different_attributes: u64,
    /// Whether differing attributes count as differences.
    #[serde(skip)]
    are_attributes_strict: bool,
}

impl Tally {
    /// Returns the number of tensors and attributes that count as different.
    fn difference_count(&self) -> u64 {
        let attributes = if self.are_attributes_strict { self.different_attributes } else { 0 };
        self.different + self.only_in_a + self.only_in_b + attributes
    }
}

impl Diff<'_> {
    /// Returns an iterator that compares the tensors, and counts the results.
    fn findings(&self) -> LibraryResult<Box<dyn Iterator<Item = LibraryResult<Finding>> + '_>> {
        let found = self.by_name()?;
        if self.args.sort == Sort::Name {
            return Ok(Box::new(found));
        }
        let mut found: Vec<Finding> = found.collect::<LibraryResult<_>>()?;
        found.sort_by(|a, b| b.change.total_cmp(&a.change));
        Ok(Box::new(found.into_iter().map(Ok)))
    }

    /// The same in ascending order of name.
    fn by_name(&self) -> LibraryResult<impl Iterator<Item = LibraryResult<Finding>>> {
        Ok(pairs(self.a, self.b, &self.selection)?.flat_map(|pair| match pair {
            Ok(pair) => self.compare(pair).into_iter().map(Ok).collect(),
            Err(e) => vec![Err(e)],
        }))
    }

    fn compare(&self, pair: Pair) -> Vec<Finding> {
        let mut tally = self.tally.borrow_mut();
        let (a, b) = match pair {
            (Some(a), Some(b)) => (a, b),
            (Some(a), None) => {
                tally.only_in_a += 1;
                return vec![Finding::only(Kind::OnlyInA, &a)];
            }
            (None, Some(b)) => {
                tally.only_in_b += 1;
                return vec![Finding::only(Kind::OnlyInB, &b)];
            }
            (None, None) => return Vec::new(),
        };
        let found = self.differences(&a, &b, &mut tally);
        if found.iter().any(|finding| finding.kind == Kind::Error) {
            tally.failed += 1;
        } else if found.is_empty() {
            tally.equal += 1;
            tally.equal_bytes = tally.equal_bytes.saturating_add(a.header.nbytes() as u64);
        } else {
            tally.different += 1;
            let is_layout =
                |finding: &Finding| matches!(finding.kind, Kind::Layout | Kind::Sharing | Kind::Offset);
            tally.only_layout += u64::from(found.iter().all(is_layout));
        }
        found
    }

    fn differences(&self, a: &TensorInfo, b: &TensorInfo, tally: &mut Tally) -> Vec<Finding> {
        let mut found = Vec::new();
        let [in_a, in_b] = [a, b].map(|info| info.header.dtype().name());
        if in_a != in_b && !self.args.cast {
            let text = format!("dtype {in_a}, {in_b}");
            found.push(Finding::new(a, Kind::Dtype, json!({ "a": in_a, "b": in_b }), text));
        }
        let [in_a, in_b] = [a, b].map(|info| info.header.size());
        if in_a != in_b {
            let text = format!("size {in_a:?}, {in_b:?}");
            found.push(Finding::new(a, Kind::Size, json!({ "a": in_a, "b": in_b }), text));
        }
        if !found.is_empty() {
            return found;
        }
        if !self.args.no_values {
            match self.compare_values(a, b) {
                Ok(difference) => found.extend(difference.map(|it| Finding::values([a, b], &it))),
                Err(Failure { side, why }) => {
                    let place = side.map_or(String::new(), |side| format!("{}: ", side.name()));
                    self.bar.suspend(|| warn(&format!("diff {}: {place}{why}", quoted(&a.name))));
                    let record = json!({ "side": side, "message": why });
                    found.push(Finding::new(a, Kind::Error, record, why));
                }
            }
        }
        let is_stride_equal = have_equal_strides(a, b);
        tally.other_strides += u64::from(!is_stride_equal);
        if let Some(sharing) = &self.sharing {
            found.extend(sharing.compare(a, b));
            found.extend(Finding::layout(a, &a.header, &b.header, is_stride_equal));
        }
        found
    }

    fn compare_values(&self, a: &TensorInfo, b: &TensorInfo) -> Result<Option<Difference>, Failure> {
        let a_tensor = self.a.load(&a.name).map_err(Failure::of(Side::A))?;
        let b_tensor = self.b.load(&b.name).map_err(Failure::of(Side::B))?;
        let tolerance = Tolerance { relative: self.args.rtol, absolute: self.args.atol };
        let (bar, itemsize) = (&self.bar, a.header.dtype().itemsize());
        compare(&a_tensor, &b_tensor, (tolerance, self.args.needs_norms()), &|numel| {
            bar.inc(numel.saturating_mul(itemsize) as u64)
        })
    }

    /// Returns the attributes that differ, and counts them.
    fn attributes(&self) -> Vec<AttributeDifference> {
        if self.selection.is_partial() {
            return Vec::new();
        }
        let (a, b) = (self.a.attributes(), self.b.attributes());
        let only_in_b = b.keys().filter(|at| !a.contains_key(*at));
        let difference = |at: &(String, String)| {
            let ((scope, key), a, b) = (at.clone(), a.get(at).cloned(), b.get(at).cloned());
            AttributeDifference { scope, key, a, b }
        };
        let all = a.keys().chain(only_in_b).map(difference);
        let found: Vec<AttributeDifference> = all.filter(|found| found.a != found.b).collect();
        let mut tally = self.tally.borrow_mut();
        tally.different_attributes = found.len() as u64;
        tally.are_attributes_strict = self.args.strict;
        found
    }
}

/// An attribute that differs, and its values in A and in B.
#[derive(Serialize)]
struct AttributeDifference {
    /// Only for an attribute of a tensor or a prefix.
    #[serde(skip_serializing_if = "String::is_empty")]
    scope: String,
    key: String,
    a: Option<String>,
    b: Option<String>,
}
