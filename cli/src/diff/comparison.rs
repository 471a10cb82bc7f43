//! Compares the tensors and the attributes of two stores or files.

use std::cell::RefCell;

use serde::Serialize;
use serde_json::json;
use stridemap::{Result as LibraryResult, TensorInfo};

use super::elements::Tolerance;
use super::finding::{Finding, Kind};
use super::headers::{Sharing, have_equal_strides};
use super::pairs::{Pair, Selection, pairs};
use super::values::{Difference, Failure, Side, compare};
use super::{DiffArgs, Sort};
use crate::input::Input;
use crate::names::{Named as _, quoted};
use crate::ui::{Progress, warn};

/// Two stores or files, and what of them is compared.
pub(super) struct Diff<'a> {
    pub(super) a: &'a Input,
    pub(super) b: &'a Input,
    pub(super) args: &'a DiffArgs,
    pub(super) selection: Selection,
    /// If all tensors are compared, and some share bytes.
    pub(super) sharing: Option<Sharing>,
    pub(super) tally: RefCell<Tally>,
    pub(super) bar: Progress,
}

/// The number of tensors for each result.
#[derive(Default, Serialize)]
pub(super) struct Tally {
    pub(super) equal: u64,
    #[serde(skip)]
    pub(super) equal_bytes: u64,
    pub(super) different: u64,
    /// How many of the different tensors differ only in their layouts.
    #[serde(skip)]
    pub(super) only_layout: u64,
    pub(super) only_in_a: u64,
    pub(super) only_in_b: u64,
    pub(super) failed: u64,
    /// Tensors whose strides differ, whatever their result is.
    pub(super) other_strides: u64,
    /// Tensors that share bytes with another one only in A or only in B, whatever their result is.
    #[serde(skip)]
    pub(super) other_sharing: u64,
    #[serde(skip)]
    pub(super) different_attributes: u64,
    /// Whether differing attributes count as differences.
    #[serde(skip)]
    pub(super) are_attributes_strict: bool,
}

impl Tally {
    /// Returns the number of tensors and attributes that count as different.
    pub(super) fn difference_count(&self) -> u64 {
        let attributes = if self.are_attributes_strict { self.different_attributes } else { 0 };
        self.different + self.only_in_a + self.only_in_b + attributes
    }
}

impl Diff<'_> {
    /// Returns an iterator that compares the tensors, and counts the results.
    pub(super) fn findings(&self) -> LibraryResult<Box<dyn Iterator<Item = LibraryResult<Finding>> + '_>> {
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
        let shared = self.sharing.as_ref().and_then(|sharing| sharing.compare(a, b));
        if self.args.strict {
            found.extend(shared);
            found.extend(Finding::layout(a, &a.header, &b.header, is_stride_equal));
        } else {
            tally.other_sharing += u64::from(shared.is_some_and(|finding| finding.kind == Kind::Sharing));
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
    pub(super) fn attributes(&self) -> Vec<AttributeDifference> {
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
pub(super) struct AttributeDifference {
    /// Only for an attribute of a tensor or a prefix.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) scope: String,
    pub(super) key: String,
    pub(super) a: Option<String>,
    pub(super) b: Option<String>,
}
