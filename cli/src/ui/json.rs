//! JSON records of the commands.

use std::io::Write;

use serde::ser::{Error as _, SerializeSeq as _};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use stridemap::{DType, Header, Scalar, TensorInfo};

use crate::error::Result;

/// The version of the JSON objects. It is incremented by any change that a consumer could notice.
const JSON_VERSION: u32 = 1;

/// Serializes a record as a JSON object on one line.
pub(crate) fn write_json(out: &mut impl Write, record: impl Serialize) -> Result<()> {
    #[derive(Serialize)]
    struct Versioned<T> {
        v: u32,
        #[serde(flatten)]
        record: T,
    }
    serde_json::to_writer(&mut *out, &Versioned { v: JSON_VERSION, record })?;
    Ok(writeln!(out)?)
}

/// Returns the header of a tensor as JSON.
pub(crate) fn tensor_record(info: &TensorInfo) -> Value {
    json!({
        "name": info.name,
        "dtype": info.header.dtype().name(),
        "size": info.header.size(),
        "stride": info.header.stride(),
        "storage_offset": info.header.storage_offset(),
        "storage": storage_id(info.storage_id),
        "is_contiguous": info.header.is_contiguous(),
        "numel": info.header.numel(),
        "nbytes": info.header.nbytes(),
        "dim_names": info.header.dim_names(),
    })
}

/// Returns what a command that changes or writes a tensor says about it.
pub(crate) fn short_record(name: &str, header: &Header) -> Value {
    loaded_record(name, header.dtype(), header.size(), header.nbytes())
}

/// Like [`short_record`], for a tensor that has been loaded.
pub(crate) fn loaded_record(name: &str, dtype: DType, size: &[usize], nbytes: usize) -> Value {
    let numel: usize = size.iter().product();
    json!({ "name": name, "dtype": dtype.name(), "size": size, "numel": numel, "nbytes": nbytes })
}

/// Returns an object with the keys of two.
pub(crate) fn joined(mut record: Value, mut more: Value) -> Value {
    if let (Some(record), Some(more)) = (record.as_object_mut(), more.as_object_mut()) {
        record.append(more);
    }
    record
}

/// Formats a storage id as sixteen hexadecimal digits, as in the name of the storage's file.
pub(crate) fn storage_id(id: u64) -> String {
    format!("{id:016x}")
}

/// A JSON list whose items are produced while it is written. An error in an item stops the output.
pub(crate) struct List<F>(pub(crate) F);

impl<F, I, T> Serialize for List<F>
where
    F: Fn() -> stridemap::Result<I>,
    I: Iterator<Item = stridemap::Result<T>>,
    T: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for item in self.0().map_err(S::Error::custom)? {
            list.serialize_element(&item.map_err(S::Error::custom)?)?;
        }
        list.end()
    }
}

/// Returns an element as JSON. NaN and infinity are strings, and a complex number or a pair is a list of two numbers.
pub(crate) fn element(scalar: Scalar) -> Value {
    match scalar {
        Scalar::Bool(value) => value.into(),
        Scalar::Int(value) => json!(value),
        Scalar::Float(value) => float(value),
        Scalar::Complex(first, second) | Scalar::Pair(first, second) => json!([float(first), float(second)]),
        other => format!("{other:?}").into(),
    }
}

pub(crate) fn float(number: f64) -> Value {
    match number {
        x if x.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        x => x.into(),
    }
}
