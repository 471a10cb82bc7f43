//! What differs in a tensor.

use serde::Serialize;
use serde_json::{Value, json};
use stridemap::{Header, Scalar, TensorInfo};

use super::values::Difference;
use crate::look::chart::short;
use crate::look::format_dim_names;
use crate::pieces::unravel_index;
use crate::scalar::{digits, text_of};
use crate::ui::{counted, element, float, gap, joined};

/// A difference or a failed comparison of a tensor.
#[derive(Serialize)]
pub(super) struct Finding {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// What else the JSON has.
    #[serde(flatten)]
    pub(super) record: Value,
    /// What the line has after the name.
    #[serde(skip)]
    pub(super) text: String,
    /// The cells of a table, if values differ and `-l` is given.
    #[serde(skip)]
    pub(super) cells: Option<[String; 5]>,
    /// The relative norm of the change. A tensor that is not in both is sorted before all others.
    #[serde(skip)]
    pub(super) change: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
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
    pub(super) fn new(info: &TensorInfo, kind: Kind, record: Value, text: String) -> Self {
        Finding { name: info.name.clone(), kind, record, text, cells: None, change: f64::INFINITY }
    }

    pub(super) fn only(kind: Kind, info: &TensorInfo) -> Self {
        let (dtype, size) = (info.header.dtype().name(), info.header.size());
        let record = json!({ "dtype": dtype, "size": size });
        Finding::new(info, kind, record, format!("{dtype}{}{size:?}", gap()))
    }

    pub(super) fn values([info, other]: [&TensorInfo; 2], difference: &Difference) -> Self {
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
    pub(super) fn layout(info: &TensorInfo, a: &Header, b: &Header, is_stride_equal: bool) -> Option<Self> {
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
