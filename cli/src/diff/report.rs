//! Prints the result of a comparison.

use std::io::Write;

use indicatif::HumanBytes;
use serde::{Serialize, Serializer};
use stridemap::{DType, Scalar, TensorInfo};

use super::headers::{SharingDifference, have_equal_strides};
use super::values::{Difference, Side};
use super::{Diff, Finding, Tally, What};
use crate::error::Result;
use crate::input::Input;
use crate::look::format_dim_names;
use crate::names::{of_scope, one_line, quoted};
use crate::pieces::unravel_index;
use crate::scalar::{digits, text_of};
use crate::ui::{Element, List, counted, gap, write_json};

/// Prints one line per finding, and a summary.
pub(super) fn print_text(diff: &Diff<'_>, out: &mut impl Write) -> Result<()> {
    for finding in diff.findings()? {
        let finding = finding?;
        diff.bar.suspend(|| match finding.to_text() {
            Some(line) => writeln!(out, "{line}"),
            None => Ok(()),
        })?;
    }
    for ((scope, key), a, b) in diff.attributes() {
        let line = match (a, b) {
            (Some(a), Some(b)) => format!("{}, {}", one_line(&a), one_line(&b)),
            (Some(a), None) => format!("only in A: {}", one_line(&a)),
            (_, b) => format!("only in B: {}", one_line(&b.unwrap_or_default())),
        };
        writeln!(out, "@ {}{}{}{line}", one_line(&key), of_scope(&scope), gap())?;
    }
    Ok(writeln!(out, "{}", diff.tally.borrow().to_text(diff.args.no_values))?)
}

/// Prints one JSON object. It is written while the tensors are compared.
pub(super) fn print_json(diff: &Diff<'_>, out: &mut impl Write) -> Result<()> {
    #[derive(Serialize)]
    struct Comparison<T, A, C, E> {
        a: SourceRecord,
        b: SourceRecord,
        tensors: T,
        attributes: A,
        counts: C,
        equal: E,
    }
    let attributes =
        || diff.attributes().map(|((scope, key), a, b)| Ok(AttributeRecord { scope, key, a, b }));
    write_json(
        out,
        Comparison {
            a: SourceRecord::of(diff.a),
            b: SourceRecord::of(diff.b),
            tensors: List(|| Ok(diff.findings()?.map(|finding| finding.map(FindingRecord)))),
            attributes: List(|| Ok(attributes())),
            counts: Deferred(|| Counts::of(&diff.tally.borrow())),
            equal: Deferred(|| {
                let tally = diff.tally.borrow();
                tally.difference_count() == 0 && tally.failed == 0
            }),
        },
    )
}

/// A value that is computed only when it is serialized.
struct Deferred<F>(F);

impl<T: Serialize, F: Fn() -> T> Serialize for Deferred<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0().serialize(serializer)
    }
}

#[derive(Serialize)]
struct SourceRecord {
    path: String,
    format: &'static str,
}

impl SourceRecord {
    fn of(source: &Input) -> Self {
        SourceRecord { path: source.path().display().to_string(), format: source.format() }
    }
}

#[derive(Serialize)]
struct AttributeRecord {
    /// Only for an attribute of a tensor or a prefix.
    #[serde(skip_serializing_if = "String::is_empty")]
    scope: String,
    key: String,
    a: Option<String>,
    b: Option<String>,
}

#[derive(Serialize)]
struct Counts {
    equal: u64,
    different: u64,
    only_in_a: u64,
    only_in_b: u64,
    failed: u64,
    other_strides: u64,
}

impl Counts {
    fn of(tally: &Tally) -> Self {
        let &Tally { equal, different, only_in_a, only_in_b, failed, other_strides, .. } = tally;
        Counts { equal, different, only_in_a, only_in_b, failed, other_strides }
    }
}

struct FindingRecord(Finding);

impl Serialize for FindingRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Named<'a, T> {
            name: &'a str,
            kind: &'static str,
            #[serde(flatten)]
            what: T,
        }
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Body<'a> {
            Header { dtype: &'static str, size: &'a [usize] },
            DTypes { a: &'static str, b: &'static str },
            Sizes { a: &'a [usize], b: &'a [usize] },
            Values(ValuesRecord),
            Layouts { a: LayoutRecord<'a>, b: LayoutRecord<'a> },
            Sharing { side: &'static str, with: &'a str },
            Offset { with: &'a str, a: isize, b: isize },
            Failure { side: Option<&'static str>, message: &'a str },
        }
        let (kind, what) = match &self.0.what {
            What::Only(side, dtype, size) => {
                let kind = if *side == Side::A { "only_in_a" } else { "only_in_b" };
                (kind, Body::Header { dtype: dtype.name(), size })
            }
            What::DType(a, b) => ("dtype", Body::DTypes { a: a.name(), b: b.name() }),
            What::Size(a, b) => ("size", Body::Sizes { a, b }),
            What::Values { size, difference, .. } => {
                ("values", Body::Values(ValuesRecord::of(difference, size)))
            }
            What::Layout(a, b) => {
                ("layout", Body::Layouts { a: LayoutRecord::of(a), b: LayoutRecord::of(b) })
            }
            What::Sharing(SharingDifference::OneSide(side, with)) => {
                ("sharing", Body::Sharing { side: side.name(), with })
            }
            What::Sharing(SharingDifference::Offset(with, a, b)) => {
                ("offset", Body::Offset { with, a: *a, b: *b })
            }
            What::Failed(failure) => {
                ("error", Body::Failure { side: failure.side.map(Side::name), message: &failure.why })
            }
        };
        Named { name: &self.0.name, kind, what }.serialize(serializer)
    }
}

#[derive(Serialize)]
struct ValuesRecord {
    numel: usize,
    differing: u64,
    nan: u64,
    max_absolute: Option<Element>,
    max_relative: Option<Element>,
    first: Vec<usize>,
    a: Element,
    b: Element,
}

impl ValuesRecord {
    fn of(difference: &Difference, size: &[usize]) -> Self {
        let (first, a, b) = difference.first;
        ValuesRecord {
            numel: size.iter().product(),
            differing: difference.count,
            nan: difference.nan_count,
            max_absolute: difference.largest.map(|(absolute, _)| Element(absolute)),
            max_relative: difference.largest.map(|(_, relative)| Element(Scalar::Float(relative))),
            first: unravel_index(first, size),
            a: Element(a),
            b: Element(b),
        }
    }
}

#[derive(Serialize)]
struct LayoutRecord<'a> {
    stride: &'a [isize],
    storage_offset: usize,
    dim_names: Option<&'a [Option<String>]>,
}

impl<'a> LayoutRecord<'a> {
    fn of(info: &'a TensorInfo) -> Self {
        LayoutRecord {
            stride: info.stride(),
            storage_offset: info.storage_offset(),
            dim_names: info.dim_names.as_deref(),
        }
    }
}

impl Side {
    /// Returns the name of the side, as in the arguments `A` and `B`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Side::A => "A",
            Side::B => "B",
        }
    }
}

impl Finding {
    /// Formats a finding as a line. A failed comparison returns `None`, because it was already reported as a message.
    fn to_text(&self) -> Option<String> {
        let (mark, what) = match &self.what {
            What::Only(Side::A, dtype, size) => ('-', format!("{dtype}{}{size:?}", gap())),
            What::Only(Side::B, dtype, size) => ('+', format!("{dtype}{}{size:?}", gap())),
            What::DType(a, b) => ('~', format!("dtype {a}, {b}")),
            What::Size(a, b) => ('~', format!("size {a:?}, {b:?}")),
            What::Values { dtype, size, difference } => ('~', values_text(*dtype, size, difference)),
            What::Layout(a, b) => ('~', layout_text(a, b)),
            What::Sharing(SharingDifference::OneSide(side, with)) => {
                ('~', format!("shares bytes with {} only in {}", quoted(with), side.name()))
            }
            What::Sharing(SharingDifference::Offset(with, a, b)) => {
                ('~', format!("offset from {} {a}, {b}", quoted(with)))
            }
            What::Failed(_) => return None,
        };
        Some(format!("{mark} {}{}{what}", quoted(&self.name), gap()))
    }
}

fn values_text(dtype: DType, size: &[usize], difference: &Difference) -> String {
    let numel: usize = size.iter().product();
    let mut text = format!("values differ in {} of {}", difference.count, counted(numel as u64, "element"));
    if difference.nan_count > 0 {
        text += &format!(", {} of them NaN on one side only", difference.nan_count);
    }
    if let Some((absolute, relative)) = difference.largest {
        let absolute = text_of(absolute, |number| digits(number, DType::F64));
        text += &format!(", by at most {absolute} (relative {})", digits(relative, DType::F64));
    }
    let (first, a, b) = difference.first;
    let [a, b] = [a, b].map(|value| text_of(value, |number| digits(number, dtype)));
    text + &format!(", first at {:?}: {a}, {b}", unravel_index(first, size))
}

fn layout_text(a: &TensorInfo, b: &TensorInfo) -> String {
    let mut parts = Vec::new();
    if !have_equal_strides(a, b) {
        parts.push(format!("stride {:?}, {:?}", a.stride(), b.stride()));
    }
    if a.dim_names != b.dim_names {
        let names = |info: &TensorInfo| match &info.dim_names {
            Some(names) => format_dim_names(Some(names)),
            None => "none".to_owned(),
        };
        parts.push(format!("dimension names {}, {}", names(a), names(b)));
    }
    parts.join("; ")
}

impl Tally {
    fn to_text(&self, no_values: bool) -> String {
        let differs = self.difference_count() > 0;
        let counts = [
            (self.different - self.only_layout, "different"),
            (self.only_layout, "with another layout"),
            (self.only_in_a, "only in A"),
            (self.only_in_b, "only in B"),
            (self.failed, "not compared"),
        ];
        let mut text = if !differs && self.failed == 0 {
            format!("equal: {}, {}", counted(self.equal, "tensor"), HumanBytes(self.equal_bytes))
        } else {
            let verdict = if differs { "different" } else { "unknown" };
            let mut parts = vec![format!("{} equal", self.equal)];
            parts.extend(counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
            format!("{verdict}: {}", parts.join(", "))
        };
        if no_values {
            text += "; values were not compared";
        }
        if self.other_strides > 0 {
            text += &format!("; {} with different strides", self.other_strides);
        }
        match self.different_attributes {
            0 => {}
            1 => text += "; 1 attribute differs",
            n => text += &format!("; {n} attributes differ"),
        }
        text
    }
}
