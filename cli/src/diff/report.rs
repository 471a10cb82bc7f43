//! Prints the result of a comparison.

use std::cell::RefCell;
use std::io::Write;

use indicatif::HumanBytes;
use serde::{Serialize, Serializer};
use stridemap::DType;

use super::values::Side;
use super::{AttributeDifference, Diff, Finding, Layout, Tally, Values, What};
use crate::error::Result;
use crate::input::Input;
use crate::look::format_dim_names;
use crate::names::{of_scope, one_line, quoted};
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
    for AttributeDifference { scope, key, a, b } in diff.attributes() {
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
    struct Compared {
        path: String,
        format: &'static str,
    }
    #[derive(Serialize)]
    struct Comparison<'a, T, A, E> {
        a: Compared,
        b: Compared,
        tensors: T,
        attributes: A,
        counts: &'a RefCell<Tally>,
        equal: E,
    }
    let source =
        |input: &Input| Compared { path: input.path().display().to_string(), format: input.format() };
    write_json(
        out,
        Comparison {
            a: source(diff.a),
            b: source(diff.b),
            tensors: List(|| diff.findings()),
            attributes: List(|| Ok(diff.attributes().map(Ok))),
            counts: &diff.tally,
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
            What::OnlyInA { dtype, size } => ('-', format!("{dtype}{}{size:?}", gap())),
            What::OnlyInB { dtype, size } => ('+', format!("{dtype}{}{size:?}", gap())),
            What::DType { a, b } => ('~', format!("dtype {a}, {b}")),
            What::Size { a, b } => ('~', format!("size {a:?}, {b:?}")),
            What::Values(values) => ('~', values.to_text()),
            What::Layout { a, b, is_stride_equal } => ('~', layout_text(a, b, *is_stride_equal)),
            What::Sharing { side, with } => {
                ('~', format!("shares bytes with {} only in {}", quoted(with), side.name()))
            }
            What::Offset { with, a, b } => ('~', format!("offset from {} {a}, {b}", quoted(with))),
            What::Failed(_) => return None,
        };
        Some(format!("{mark} {}{}{what}", quoted(&self.name), gap()))
    }
}

impl Values {
    fn to_text(&self) -> String {
        let mut text =
            format!("values differ in {} of {}", self.differing, counted(self.numel as u64, "element"));
        if self.nan > 0 {
            text += &format!(", {} of them NaN on one side only", self.nan);
        }
        let shown = |element: &Element, dtype| text_of(element.0, |number| digits(number, dtype));
        if let (Some(absolute), Some(relative)) = (&self.max_absolute, &self.max_relative) {
            let [absolute, relative] = [absolute, relative].map(|it| shown(it, DType::F64));
            text += &format!(", by at most {absolute} (relative {relative})");
        }
        let [a, b] = [&self.a, &self.b].map(|it| shown(it, self.dtype));
        text + &format!(", first at {:?}: {a}, {b}", self.first)
    }
}

fn layout_text(a: &Layout, b: &Layout, is_stride_equal: bool) -> String {
    let mut parts = Vec::new();
    if !is_stride_equal {
        parts.push(format!("stride {:?}, {:?}", a.0.stride(), b.0.stride()));
    }
    if a.0.dim_names() != b.0.dim_names() {
        let names = |layout: &Layout| match layout.0.dim_names() {
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
