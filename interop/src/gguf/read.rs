//! Reads the header of a file, and checks it against the file.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::HashSet;
use std::result::Result as StdResult;
use std::sync::Arc;

use stridemap::{DType, Header, Result};
use stridemap_format::limits::MAX_RANK;

use super::reader::Reader;
use super::types::TensorType;
use super::{DEFAULT_ALIGNMENT, MAGIC, VERSION};
use crate::budget::Budget;
use crate::contents::{Contents, ForeignTensor};
use crate::file::RawFile;
use crate::foreign_storage::ForeignStorage;
use crate::{FileFormat, ForeignOptions};

/// The memory that a file of any size may take, and the length of a header that is assumed for a large file.
const FIXED_BYTES: u64 = 1 << 20;
const ASSUMED_BYTES: u64 = 16 << 20;

/// The maximum number of bytes of a text that is not UTF-8, and that an error quotes.
const MAX_SHOWN_BYTES: usize = 200;

/// The least bytes of a value, with its key, and of a header of a tensor.
const LEAST_VALUE_BYTES: u64 = 13;
const LEAST_TENSOR_BYTES: u64 = 24;

/// The approximate memory that a tensor takes, besides its name, and that each of its dimensions takes.
pub(super) const TENSOR_BYTES: usize = 384;
const DIM_BYTES: usize = 16;

/// Reads the header of a file, and checks it against the file.
pub(crate) fn read(file: &Arc<RawFile>, options: ForeignOptions) -> Result<Contents> {
    let mut reader = Reader::new(file, MAGIC.len() as u64);
    check_version(file, reader.u32()?)?;
    let (tensor_count, value_count) = (reader.u64()?, reader.u64()?);
    let header_bytes = file.length_bytes().min(ASSUMED_BYTES) as usize;
    let mut opening = Opening {
        file,
        options,
        reader,
        budget: Budget::of(header_bytes, file.length_bytes(), FIXED_BYTES),
        contents: Contents::new(FileFormat::Gguf),
        alignment: DEFAULT_ALIGNMENT,
        keys: HashSet::new(),
    };
    opening.check_counts(tensor_count, value_count)?;
    for _ in 0..value_count {
        opening.read_value()?;
    }
    let mut placed = Vec::with_capacity(tensor_count as usize);
    for _ in 0..tensor_count {
        placed.extend(opening.read_tensor()?);
    }
    opening.place(placed)
}

/// Refuses versions other than 2 and 3, which differ in nothing that matters here.
fn check_version(file: &RawFile, version: u32) -> Result<()> {
    match version {
        2 | VERSION => Ok(()),
        1 => {
            Err(file
                .bad("version 1 of GGUF, which is not supported; convert the file with a newer llama.cpp"))
        }
        1.. if version.trailing_zeros() >= 16 => Err(file.bad(
            "a big-endian GGUF file; convert it with gguf-convert-endian, which is part of the gguf package",
        )),
        _ => Err(file.bad(format!("version {version} of GGUF, but only 2 and 3 are supported"))),
    }
}

/// A tensor whose place is not yet checked.
struct Placed {
    name: String,
    header: Header,
    /// The name of the type, if the header does not have it.
    gguf_type: Option<&'static str>,
    /// The offset from the first byte of elements.
    offset_bytes: u64,
}

/// A file whose header is being read.
pub(super) struct Opening<'a> {
    pub(super) file: &'a Arc<RawFile>,
    pub(super) options: ForeignOptions,
    pub(super) reader: Reader<'a>,
    budget: Budget,
    pub(super) contents: Contents,
    pub(super) alignment: u64,
    /// The keys of values that are tensors of bytes, or left out.
    pub(super) keys: HashSet<String>,
}

impl Opening<'_> {
    fn check_counts(&mut self, tensor_count: u64, value_count: u64) -> Result<()> {
        let tensors_bytes = tensor_count.checked_mul(LEAST_TENSOR_BYTES);
        let values_bytes = value_count.checked_mul(LEAST_VALUE_BYTES);
        let least_bytes = tensors_bytes.zip(values_bytes).and_then(|(a, b)| a.checked_add(b));
        let what = format!("a header of {tensor_count} tensors and {value_count} values");
        self.reader.check(&what, least_bytes)?;
        self.charge((tensor_count as usize).saturating_mul(TENSOR_BYTES))
    }

    pub(super) fn charge(&mut self, bytes: usize) -> Result<()> {
        self.budget.charge(bytes).map_err(|what| self.file.bad(what))
    }

    /// Reads a text. The error is the beginning of a text that is not UTF-8. `copies` is how often it will be in memory.
    pub(super) fn text(&mut self, copies: usize) -> Result<StdResult<String, String>> {
        let length = self.reader.text_length()?;
        self.charge((length as usize).saturating_mul(copies))?;
        let bytes = self.reader.bytes(length)?;
        Ok(String::from_utf8(bytes).map_err(|e| {
            let shown = e.as_bytes().iter().take(MAX_SHOWN_BYTES).copied().collect::<Vec<_>>();
            String::from_utf8_lossy(&shown).into_owned()
        }))
    }

    /// Reads the header of a tensor. `None` if it is left out.
    fn read_tensor(&mut self) -> Result<Option<Placed>> {
        let name = self.text(2)?;
        let rank = self.reader.u32()? as usize;
        let shown = name.as_ref().unwrap_or_else(|lossy| lossy);
        if rank > MAX_RANK {
            let what = format!("tensor {shown:?} has {rank} dimensions, but at most {MAX_RANK} are allowed");
            return Err(self.file.bad(what));
        }
        self.charge(rank.saturating_mul(DIM_BYTES))?;
        let mut size = Vec::with_capacity(rank);
        for _ in 0..rank {
            size.push(self.reader.u64()?);
        }
        // The first dimension is that of the elements that are next to each other.
        size.reverse();
        let (code, offset_bytes) = (self.reader.u32()?, self.reader.u64()?);
        let (name, header) = match name {
            Ok(name) => {
                let header = header_of(code, &size);
                (name, header)
            }
            Err(name) => (name, Err("the name is not UTF-8".to_owned())),
        };
        match header {
            Ok((header, gguf_type)) => Ok(Some(Placed { name, header, gguf_type, offset_bytes })),
            Err(what) => {
                let reason = self.file.bad(format!("tensor {name:?}: {what}"));
                self.contents.skip(self.options, name, reason)?;
                Ok(None)
            }
        }
    }

    /// Checks that all tensors are in the file and that none overlaps another, and adds them.
    fn place(mut self, mut placed: Vec<Placed>) -> Result<Contents> {
        let Opening { file, alignment, .. } = self;
        let bad = |name: &str, what: String| file.bad(format!("tensor {name:?} {what}"));
        let start_bytes = self.reader.at().checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let rest_bytes = file.length_bytes().saturating_sub(start_bytes);
        for Placed { name, header, offset_bytes, .. } in &placed {
            if !offset_bytes.is_multiple_of(alignment) {
                return Err(bad(
                    name,
                    format!("begins at {offset_bytes}, which is not a multiple of {alignment}"),
                ));
            }
            let length_bytes = header.nbytes() as u64;
            let end_bytes = offset_bytes.checked_add(length_bytes);
            if end_bytes.is_none_or(|end| end > rest_bytes) || start_bytes > file.length_bytes() {
                let what = format!(
                    "has {length_bytes} bytes at {offset_bytes}, but the file has {rest_bytes} bytes of elements; it is \
                     truncated"
                );
                return Err(bad(name, what));
            }
        }
        placed.sort_by_key(|tensor| (tensor.offset_bytes, tensor.header.nbytes()));
        let mut end_bytes = 0;
        for Placed { name, header, offset_bytes, .. } in &placed {
            if *offset_bytes < end_bytes && header.nbytes() > 0 {
                return Err(bad(name, format!("begins at {offset_bytes}, within another tensor")));
            }
            end_bytes = end_bytes.max(offset_bytes.saturating_add(header.nbytes() as u64));
        }
        let whole = self.contents.storages.len();
        if !placed.is_empty() {
            self.contents.storages.push(ForeignStorage::of_range(file, start_bytes, end_bytes));
        }
        for Placed { name, header, gguf_type, offset_bytes } in placed {
            let itemsize = header.dtype().itemsize() as u64;
            let (storage, header) = match offset_bytes.checked_div(itemsize) {
                Some(offset) if offset.saturating_mul(itemsize) == offset_bytes => {
                    (whole, header.with_storage_offset(offset as usize))
                }
                // Only an alignment below that of the elements allows this.
                _ => {
                    let at = start_bytes.saturating_add(offset_bytes);
                    let own = ForeignStorage::of_range(file, at, header.nbytes() as u64);
                    self.contents.storages.push(own);
                    (self.contents.storages.len().saturating_sub(1), header)
                }
            };
            let mut tensor = ForeignTensor::new(name, header, storage);
            tensor.gguf_type = gguf_type;
            self.contents.tensors.push(tensor);
        }
        Ok(self.contents)
    }
}

/// Returns the header of a tensor, and the name of its type unless it follows from the dtype.
fn header_of(code: u32, size: &[u64]) -> StdResult<(Header, Option<&'static str>), String> {
    let Some(found) = TensorType::of_code(code) else {
        return Err(format!("its type has the number {code}, which stridemap does not know"));
    };
    let dims: StdResult<Vec<_>, _> = size.iter().map(|&n| usize::try_from(n)).collect();
    let mut dims = dims.map_err(|e| e.to_string())?;
    let header = |dtype, dims: &[usize]| Header::contiguous(dtype, dims).map_err(|e| e.to_string());
    if let Some(dtype) = found.dtype {
        return Ok((header(dtype, &dims)?, None));
    }
    let TensorType { name, block_elems, block_bytes, .. } = found;
    let row = dims.last_mut().filter(|row| row.is_multiple_of(block_elems)).ok_or_else(|| {
        format!("its size {size:?} is not in rows of whole blocks of {block_elems} elements, as {name} has")
    })?;
    let blocks = row.checked_div(block_elems).and_then(|blocks| blocks.checked_mul(block_bytes));
    *row = blocks.ok_or_else(|| format!("its size {size:?} is too large"))?;
    Ok((header(DType::U8, &dims)?, Some(name)))
}
