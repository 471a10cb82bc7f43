//! `diff`: compares the tensors of two stores or files, by name.

mod elements;
mod headers;
mod pairs;
mod report;
mod values;

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use stridemap::{DType, Header, Result as LibraryResult, Scalar, TensorInfo};

use crate::args::{External, Reading};
use crate::error::{Error, Result};
use crate::input::Input;
use crate::names::{Named as _, quoted};
use crate::pieces::unravel_index;
use crate::ui::{Element, Progress, counted, progress, warn};
use elements::Tolerance;
use headers::{Sharing, have_equal_strides};
use pairs::{Pair, pairs};
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
#[command(
    after_help = "Example:\n  stridemap diff model.safetensors model.smap\n  stridemap diff before.pt after.pt --rtol 1e-5 --json | jq .equal"
)]
pub(crate) struct DiffArgs {
    /// The first store or file
    pub(crate) a: PathBuf,
    /// The second store or file
    pub(crate) b: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Compare only names, dtypes and sizes; read no elements
    #[arg(long, conflicts_with_all = ["rtol", "atol"])]
    pub(crate) no_values: bool,
    /// Also compare strides, which tensors share bytes, dimension names and attributes
    #[arg(long)]
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
    let mut size_bytes = 0u64;
    if !args.no_values {
        for tensor in a.tensors("")? {
            size_bytes = size_bytes.saturating_add(tensor?.header.nbytes() as u64);
        }
    }
    let diff = Diff {
        a: &a,
        b: &b,
        args,
        sharing: args.strict.then(|| Sharing::of(&a, &b)).transpose()?,
        tally: RefCell::default(),
        bar: progress("diff", size_bytes),
    };
    if args.json {
        report::print_json(&diff, out)?
    } else {
        report::print_text(&diff, out)?
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
    /// Only with `--strict`.
    sharing: Option<Sharing>,
    tally: RefCell<Tally>,
    bar: Progress,
}

/// A difference or a failed comparison, and the name of the tensor.
#[derive(Serialize)]
struct Finding {
    name: String,
    #[serde(flatten)]
    what: What,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum What {
    OnlyInA {
        dtype: &'static str,
        size: Vec<usize>,
    },
    OnlyInB {
        dtype: &'static str,
        size: Vec<usize>,
    },
    #[serde(rename = "dtype")]
    DType {
        a: &'static str,
        b: &'static str,
    },
    Size {
        a: Vec<usize>,
        b: Vec<usize>,
    },
    Values(Values),
    /// The strides or the names of the dimensions.
    Layout {
        a: Layout,
        b: Layout,
        #[serde(skip)]
        is_stride_equal: bool,
    },
    /// The tensor shares bytes with this one only in A, or only in B.
    Sharing {
        side: Side,
        with: String,
    },
    /// The tensor shares bytes with this one in both. Their storage offsets differ by `a` in A, and by `b` in B.
    Offset {
        with: String,
        a: isize,
        b: isize,
    },
    /// The tensor could not be compared.
    #[serde(rename = "error")]
    Failed(Failure),
}

/// How the elements of two tensors differ: see [`Difference`].
#[derive(Serialize)]
struct Values {
    numel: usize,
    differing: u64,
    nan: u64,
    max_absolute: Option<Element>,
    max_relative: Option<Element>,
    first: Vec<usize>,
    a: Element,
    b: Element,
    #[serde(skip)]
    dtype: DType,
}

/// A header whose stride, storage offset and names of dimensions are shown.
struct Layout(Header);

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("Layout", 3)?;
        map.serialize_field("stride", self.0.stride())?;
        map.serialize_field("storage_offset", &self.0.storage_offset())?;
        map.serialize_field("dim_names", &self.0.dim_names())?;
        map.end()
    }
}

impl Values {
    fn of(difference: &Difference, info: &TensorInfo) -> Self {
        let (first, a, b) = difference.first;
        let relative = |(_, relative)| Element(Scalar::Float(relative));
        Values {
            numel: info.header.numel(),
            differing: difference.count,
            nan: difference.nan_count,
            max_absolute: difference.largest.map(|(absolute, _)| Element(absolute)),
            max_relative: difference.largest.map(relative),
            first: unravel_index(first, info.header.size()),
            a: Element(a),
            b: Element(b),
            dtype: info.header.dtype(),
        }
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
    /// Returns an iterator that compares the tensors in ascending order of name, and counts the results.
    fn findings(&self) -> LibraryResult<impl Iterator<Item = LibraryResult<Finding>>> {
        Ok(pairs(self.a, self.b)?.flat_map(|pair| match pair {
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
                let what = What::OnlyInA { dtype: a.header.dtype().name(), size: a.header.size().to_vec() };
                return vec![Finding { name: a.name, what }];
            }
            (None, Some(b)) => {
                tally.only_in_b += 1;
                let what = What::OnlyInB { dtype: b.header.dtype().name(), size: b.header.size().to_vec() };
                return vec![Finding { name: b.name, what }];
            }
            (None, None) => return Vec::new(),
        };
        let (name, nbytes) = (a.name.clone(), a.header.nbytes() as u64);
        let found = self.differences(a, b, &mut tally);
        if found.iter().any(|what| matches!(what, What::Failed(_))) {
            tally.failed += 1;
        } else if found.is_empty() {
            tally.equal += 1;
            tally.equal_bytes = tally.equal_bytes.saturating_add(nbytes);
        } else {
            tally.different += 1;
            let is_layout = |what: &What| {
                matches!(what, What::Layout { .. } | What::Sharing { .. } | What::Offset { .. })
            };
            tally.only_layout += u64::from(found.iter().all(is_layout));
        }
        found.into_iter().map(|what| Finding { name: name.clone(), what }).collect()
    }

    fn differences(&self, a: TensorInfo, b: TensorInfo, tally: &mut Tally) -> Vec<What> {
        let mut found = Vec::new();
        if a.header.dtype() != b.header.dtype() {
            found.push(What::DType { a: a.header.dtype().name(), b: b.header.dtype().name() });
        }
        if a.header.size() != b.header.size() {
            found.push(What::Size { a: a.header.size().to_vec(), b: b.header.size().to_vec() });
        }
        if !found.is_empty() {
            return found;
        }
        if !self.args.no_values {
            match self.compare_values(&a, &b) {
                Ok(None) => {}
                Ok(Some(difference)) => found.push(What::Values(Values::of(&difference, &a))),
                Err(failure) => {
                    let side = failure.side.map_or(String::new(), |side| format!("{}: ", side.name()));
                    let text = format!("diff {}: {side}{}", quoted(&a.name), failure.why);
                    self.bar.suspend(|| warn(&text));
                    found.push(What::Failed(failure));
                }
            }
        }
        let is_stride_equal = have_equal_strides(&a, &b);
        tally.other_strides += u64::from(!is_stride_equal);
        if let Some(sharing) = &self.sharing {
            found.extend(sharing.compare(&a, &b));
            if !is_stride_equal || a.header.dim_names() != b.header.dim_names() {
                let (a, b) = (Layout(a.header), Layout(b.header));
                found.push(What::Layout { a, b, is_stride_equal });
            }
        }
        found
    }

    fn compare_values(&self, a: &TensorInfo, b: &TensorInfo) -> Result<Option<Difference>, Failure> {
        let a_tensor = self.a.load(&a.name).map_err(Failure::of(Side::A))?;
        let b_tensor = self.b.load(&b.name).map_err(Failure::of(Side::B))?;
        let tolerance = Tolerance { relative: self.args.rtol, absolute: self.args.atol };
        let (bar, itemsize) = (&self.bar, a.header.dtype().itemsize());
        compare(&a_tensor, &b_tensor, tolerance, &|numel| bar.inc(numel.saturating_mul(itemsize) as u64))
    }

    /// Returns the attributes that differ. The iterator also counts them.
    fn attributes(&self) -> impl Iterator<Item = AttributeDifference> {
        let (a, b) = (self.a.attributes(), self.b.attributes());
        let only_in_b = b.keys().filter(|at| !a.contains_key(*at));
        let difference = |at: &(String, String)| {
            let ((scope, key), a, b) = (at.clone(), a.get(at).cloned(), b.get(at).cloned());
            AttributeDifference { scope, key, a, b }
        };
        let all = a.keys().chain(only_in_b).map(difference);
        let found: Vec<AttributeDifference> = all.filter(|found| found.a != found.b).collect();
        found.into_iter().inspect(|_| {
            let mut tally = self.tally.borrow_mut();
            tally.different_attributes += 1;
            tally.are_attributes_strict = self.args.strict;
        })
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
