//! Files of the safetensors format: a JSON header, then the elements of its tensors one after another.
//!
//! The header is judged by the safetensors crate; elements never pass through it, so memory stays bounded.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::value::RawValue;
use stridemap_format::DType;
use stridemap_format::limits::MAX_RANK;

use super::FileFormat;
use super::contents::{Contents, ForeignStorage, ForeignTensor};
use super::file::{self, RawFile};
use crate::commit::OnExisting;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
use crate::tensor::Tensor;

/// The key of the header that is no tensor.
const METADATA_KEY: &str = "__metadata__";

/// The bytes before the header: its length.
const PREAMBLE_BYTES: usize = 8;

/// The format's own cap on its header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const DTYPES: [(Dtype, DType); 20] = [
    (Dtype::BOOL, DType::Bool),
    (Dtype::F4, DType::F4E2M1FNx2),
    (Dtype::U8, DType::U8),
    (Dtype::I8, DType::I8),
    (Dtype::F8_E5M2, DType::F8E5M2),
    (Dtype::F8_E4M3, DType::F8E4M3FN),
    (Dtype::F8_E8M0, DType::F8E8M0FNU),
    (Dtype::F8_E4M3FNUZ, DType::F8E4M3FNUZ),
    (Dtype::F8_E5M2FNUZ, DType::F8E5M2FNUZ),
    (Dtype::I16, DType::I16),
    (Dtype::U16, DType::U16),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::I32, DType::I32),
    (Dtype::U32, DType::U32),
    (Dtype::F32, DType::F32),
    (Dtype::C64, DType::C64),
    (Dtype::F64, DType::F64),
    (Dtype::I64, DType::I64),
    (Dtype::U64, DType::U64),
];

/// Reads the header of a file, and checks it against the file.
pub(super) fn read(file: &Arc<RawFile>) -> Result<Contents> {
    let header_bytes = u64::from_le_bytes(file.preamble::<PREAMBLE_BYTES>()?);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(file.bad(format!(
            "it begins like no other format that is read, and of safetensors the header would have {header_bytes} bytes, \
             where {MAX_HEADER_BYTES} are allowed"
        )));
    }
    let json = file.header(PREAMBLE_BYTES as u64, header_bytes, MAX_HEADER_BYTES)?;
    let mut header = parse::<Object<&RawValue>>(file, "the header", &json)?.0;
    let attributes = match header.remove(METADATA_KEY) {
        Some(value) => parse::<Object<String>>(file, METADATA_KEY, value.get().as_bytes())?.0,
        None => BTreeMap::new(),
    };
    let mut infos = header
        .into_iter()
        .map(|(name, value)| {
            let info: TensorInfo = parse(file, format_args!("tensor {name:?}"), value.get().as_bytes())?;
            if info.shape.len() > MAX_RANK {
                return Err(file.bad(format!("tensor {name:?} has more than {MAX_RANK} dimensions")));
            }
            Ok((name, info))
        })
        .collect::<Result<Vec<_>>>()?;
    infos.sort_by_key(|(_, info)| info.data_offsets);

    // Refuses holes, overlaps, and ranges that are not what dtype and shape take.
    let layout = Metadata::new(None, infos.clone());
    let layout = layout.map_err(|e| file.bad(format!("the header: {e}")).with_source(e))?;
    let length_bytes = layout.data_len() as u64;
    let offset_bytes = PREAMBLE_BYTES as u64 + header_bytes;
    file.check_rest(offset_bytes, length_bytes)?;

    let whole = ForeignStorage::range(file, offset_bytes, length_bytes);
    let mut contents = Contents {
        format: FileFormat::Safetensors,
        storages: vec![whole.clone()],
        tensors: Vec::with_capacity(infos.len()),
        attributes,
        keeps_storages: false,
    };
    for (name, info) in infos {
        let Some((dtype, size)) = header_of(&info) else {
            let TensorInfo { dtype, shape, .. } = info;
            return Err(file.bad(format!("tensor {name:?}: nothing here holds {dtype} of shape {shape:?}")));
        };
        let layout = Layout::contiguous(&size).map_err(|e| file.bad(format!("tensor {name:?}: {e}")))?;
        let (start, end) = info.data_offsets;
        let is_aligned = start.is_multiple_of(dtype.itemsize());
        let (storage, layout) = if is_aligned {
            let stride = layout.stride().to_vec();
            (0, Layout::new(size, stride, start / dtype.itemsize()).map_err(|e| file.bad(&e))?)
        } else {
            // No header reaches it from the beginning of the others.
            let (offset_bytes, length_bytes) = (whole.offset_bytes + start as u64, (end - start) as u64);
            contents.storages.push(ForeignStorage::range(file, offset_bytes, length_bytes));
            (contents.storages.len() - 1, layout)
        };
        contents.tensors.push(ForeignTensor { name, dtype, layout, storage });
    }
    Ok(contents)
}

/// Writes tensors and text as a `.safetensors` file, laid out as safetensors itself does it.
///
/// Views are written in their logical order. The file is written beside its place and then named, so `path` never
/// holds a part of it, and the tensors may come from the file that is replaced; a symbolic link is replaced, not
/// followed. When it returns, the file is durable. `progress` is called with the bytes of elements written since the
/// last call.
///
/// # Errors
/// [`ErrorKind::BadFile`], before anything is written, for what the format cannot hold: `complex128`, the name
/// `__metadata__`, a name given twice, `float4_e2m1fn_x2` without dimensions, sizes whose product overflows although one
/// is 0, more than 100 MB of header.
/// [`ErrorKind::AlreadyExists`] after [`OnExisting::Refuse`], and for what is not a file. [`ErrorKind::ReadOnly`].
/// [`ErrorKind::Io`], and those of reading the elements.
pub fn write(
    path: impl AsRef<Path>,
    tensors: &[(String, Tensor)],
    metadata: &BTreeMap<String, String>,
    on_existing: OnExisting,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let path = path.as_ref();
    let refused = |what: String| Error::new(ErrorKind::BadFile, format!("export {}: {what}", path.display()));
    let mut names = BTreeSet::from([METADATA_KEY]);
    let mut sorted = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        if !names.insert(name) {
            return Err(refused(format!("the name {name:?} is taken, by the format or by another tensor")));
        }
        let (dtype, shape) = shape_of(tensor).ok_or_else(|| {
            let (dtype, size) = (tensor.dtype(), tensor.size());
            refused(format!("tensor {name:?}: safetensors cannot hold {dtype} of size {size:?}"))
        })?;
        sorted.push((Reverse(dtype), name, shape, tensor));
    }
    // By descending alignment, then by name: so every tensor is aligned, and the order does not depend on the caller's.
    sorted.sort_by_key(|&(dtype, name, ..)| (dtype, name));

    let mut end_bytes = 0usize;
    let infos = sorted.iter().map(|(Reverse(dtype), name, shape, tensor)| {
        let start_bytes = end_bytes;
        end_bytes = start_bytes.saturating_add(tensor.nbytes());
        let info = TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (start_bytes, end_bytes) };
        ((*name).clone(), info)
    });
    let infos: Vec<_> = infos.collect();
    // Refuses what could not be read again: sizes whose product overflows.
    Metadata::new(None, infos.clone()).map_err(|e| refused(e.to_string()).with_source(e))?;
    let header = Header { metadata, tensors: infos };
    let mut json = serde_json::to_vec(&header).map_err(|e| refused(e.to_string()).with_source(e))?;
    json.resize(json.len().next_multiple_of(PREAMBLE_BYTES), b' ');
    let header_bytes = json.len() as u64;
    if header_bytes > MAX_HEADER_BYTES {
        return Err(refused(format!("a header of {header_bytes} bytes; {MAX_HEADER_BYTES} are allowed")));
    }
    let header = [&header_bytes.to_le_bytes(), json.as_slice()].concat();
    file::write(path, &header, sorted.iter().map(|&(.., tensor)| tensor), on_existing, progress)
}

/// None for a type without a counterpart, and for 4-bit elements that do not fill bytes along the last axis.
fn header_of(info: &TensorInfo) -> Option<(DType, Vec<usize>)> {
    let &(_, dtype) = DTYPES.iter().find(|&&(theirs, _)| theirs == info.dtype)?;
    let mut size = info.shape.clone();
    if dtype == DType::F4E2M1FNx2 {
        let last = size.last_mut().filter(|n| n.is_multiple_of(2))?;
        *last /= 2;
    }
    Some((dtype, size))
}

/// The inverse of [`header_of`].
fn shape_of(tensor: &Tensor) -> Option<(Dtype, Vec<usize>)> {
    let &(dtype, _) = DTYPES.iter().find(|&&(_, ours)| ours == tensor.dtype())?;
    let mut shape = tensor.size().to_vec();
    if dtype == Dtype::F4 {
        let last = shape.last_mut()?;
        *last = last.checked_mul(2)?;
    }
    Some((dtype, shape))
}

fn parse<'a, T: Deserialize<'a>>(file: &RawFile, what: impl fmt::Display, json: &'a [u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|e| file.bad(format!("{what}: {e}")).with_source(e))
}

/// A JSON object in which no key stands twice.
struct Object<V>(BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Object<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Object<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut object = BTreeMap::new();
                while let Some((key, value)) = entries.next_entry::<String, V>()? {
                    match object.entry(key) {
                        Entry::Vacant(place) => place.insert(value),
                        Entry::Occupied(taken) => {
                            return Err(A::Error::custom(format!("{:?} stands twice", taken.key())));
                        }
                    };
                }
                Ok(Object(object))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// The crate's own serializer writes the metadata in another order at every run.
struct Header<'a> {
    metadata: &'a BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            object.serialize_entry(METADATA_KEY, self.metadata)?;
        }
        for (name, info) in &self.tensors {
            object.serialize_entry(name, info)?;
        }
        object.end()
    }
}
