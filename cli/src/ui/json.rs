//! JSON records of the commands.

use std::io::Write;
use std::sync::Arc;

use serde::ser::{Error as _, SerializeSeq as _};
use serde::{Serialize, Serializer};
use stridemap::{Scalar, TensorInfo};

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

/// The header of a tensor.
#[derive(Serialize)]
pub(crate) struct TensorRecord {
    name: String,
    dtype: &'static str,
    size: Vec<usize>,
    stride: Vec<isize>,
    storage_offset: usize,
    storage: String,
    is_contiguous: bool,
    numel: usize,
    logical_size_bytes: usize,
    dim_names: Option<Vec<Option<Arc<str>>>>,
}

impl From<TensorInfo> for TensorRecord {
    fn from(TensorInfo { name, storage_id: id, header, .. }: TensorInfo) -> Self {
        TensorRecord {
            dtype: header.dtype().name(),
            size: header.size().to_vec(),
            stride: header.stride().to_vec(),
            storage_offset: header.storage_offset(),
            storage: storage_id(id),
            is_contiguous: header.is_contiguous(),
            numel: header.numel(),
            logical_size_bytes: header.nbytes(),
            name,
            dim_names: header.dim_names().map(<[_]>::to_vec),
        }
    }
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

/// An element in JSON. NaN and infinity are strings, and a complex number or a pair is a list of two numbers.
pub(crate) struct Element(pub(crate) Scalar);

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Scalar::Bool(value) => value.serialize(serializer),
            Scalar::Int(value) => value.serialize(serializer),
            Scalar::Float(value) => Float(value).serialize(serializer),
            Scalar::Complex(first, second) | Scalar::Pair(first, second) => {
                [Float(first), Float(second)].serialize(serializer)
            }
            other => format!("{other:?}").serialize(serializer),
        }
    }
}

struct Float(f64);

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_nan() => "NaN".serialize(serializer),
            f64::INFINITY => "Infinity".serialize(serializer),
            f64::NEG_INFINITY => "-Infinity".serialize(serializer),
            x => x.serialize(serializer),
        }
    }
}
