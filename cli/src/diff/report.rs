//! Prints the result of a comparison.

use std::cell::RefCell;
use std::io::Write;

use indicatif::HumanBytes;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::comparison::{AttributeDifference, Diff, Tally};
use super::finding::{Finding, Kind};
use super::values::Side;
use crate::error::Result;
use crate::input::Input;
use crate::names::{of_scope, one_line, quoted};
use crate::ui::{Column, List, Table, counted, gap, write_json};

const COLUMNS: [Column; 6] = [
    Column::new("name").shortenable_names(),
    Column::new("differ").right().drop_order(0),
    Column::new("max").right(),
    Column::new("rms").right(),
    Column::new("relative").right(),
    Column::new("cosine").right(),
];

/// Prints one line per finding, or a table of those about values, and a summary.
pub(super) fn print_text(diff: &Diff<'_>, out: &mut impl Write) -> Result<()> {
    let (mut table, mut count) = (Table::new(&COLUMNS), 0);
    for finding in diff.findings()? {
        let Finding { name, kind, text, cells, .. } = finding?;
        if let Some(cells) = cells.filter(|_| diff.args.long) {
            table.add_row([quoted(&name).into_owned()].into_iter().chain(cells));
            count += 1;
            continue;
        }
        let mark = match kind {
            Kind::OnlyInA => '-',
            Kind::OnlyInB => '+',
            Kind::Error => continue,
            _ => '~',
        };
        diff.bar.suspend(|| writeln!(out, "{mark} {}{}{text}", quoted(&name), gap()))?;
    }
    diff.bar.suspend(|| table.print(count, "--json", out))?;
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
    struct Comparison<'a, T, A> {
        a: Value,
        b: Value,
        tensors: T,
        attributes: A,
        counts: &'a RefCell<Tally>,
        #[serde(serialize_with = "is_equal")]
        equal: &'a RefCell<Tally>,
    }
    let source =
        |input: &Input| json!({ "path": input.path().display().to_string(), "format": input.format() });
    write_json(
        out,
        Comparison {
            a: source(diff.a),
            b: source(diff.b),
            tensors: List(|| diff.findings()),
            attributes: List(|| Ok(diff.attributes().into_iter().map(Ok))),
            counts: &diff.tally,
            equal: &diff.tally,
        },
    )
}

/// Serializes whether no difference was found. By then, the tensors and attributes have been serialized and counted.
fn is_equal<S: Serializer>(tally: &RefCell<Tally>, serializer: S) -> Result<S::Ok, S::Error> {
    let tally = tally.borrow();
    serializer.serialize_bool(tally.difference_count() == 0 && tally.failed == 0)
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
        if self.other_sharing > 0 {
            text += &format!("; {} with different sharing of bytes (--strict)", self.other_sharing);
        }
        match self.different_attributes {
            0 => {}
            1 => text += "; 1 attribute differs",
            n => text += &format!("; {n} attributes differ"),
        }
        text
    }
}
