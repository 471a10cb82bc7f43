//! Reads the header of a file, and checks it against the file.

use std::sync::Arc;

use stridemap::{Header, Result};
use stridemap_format::limits::MAX_RANK;

use super::dtype::dtype_and_size;
use super::header::{FileHeader, Info};
use super::json::{Object, parse_pieces};
use super::{MAX_HEADER_BYTES, PREAMBLE_BYTES};
use crate::contents::{Contents, ForeignTensor};
use crate::file::{RawFile, check_elements};
use crate::foreign_storage::ForeignStorage;
use crate::{FileFormat, ForeignOptions};

/// Reads the header of a file, and checks it against the file. The headers of earlier shards leave `rest_bytes` for it
/// and for later ones.
pub(crate) fn read(file: &Arc<RawFile>, rest_bytes: u64, options: ForeignOptions) -> Result<Contents> {
    let offset_bytes = header_end_bytes(file)?;
    if offset_bytes - PREAMBLE_BYTES as u64 > rest_bytes {
        return Err(file.bad(format!(
            "with its header of {} bytes, the headers of all shards have more than {MAX_HEADER_BYTES} bytes; import \
             the shards one by one",
            offset_bytes - PREAMBLE_BYTES as u64
        )));
    }
    let (FileHeader { tensors, attributes }, length_bytes) = header(file, offset_bytes)?;
    check_elements(file.length_bytes() - offset_bytes, length_bytes).map_err(|e| file.bad(e))?;

    let whole = ForeignStorage::of_range(file, offset_bytes, length_bytes);
    let mut contents = Contents {
        storages: vec![whole.clone()],
        tensors: Vec::with_capacity(tensors.len()),
        attributes: attributes.unwrap_or_default(),
        ..Contents::new(FileFormat::Safetensors)
    };
    for (name, info) in tensors {
        let Some((dtype, size)) = dtype_and_size(info.dtype, &info.shape.0) else {
            let Info { dtype, shape, .. } = info;
            let what = format!("tensor {name:?}: stridemap cannot hold {dtype} of shape {:?}", shape.0);
            contents.skip(options, name, file.bad(what))?;
            continue;
        };
        let own = Header::contiguous(dtype, &size).map_err(|e| file.bad(format!("tensor {name:?}: {e}")))?;
        let (start, end) = info.data_offsets;
        let is_aligned = start.is_multiple_of(dtype.itemsize());
        let (storage, header) = if is_aligned {
            (0, own.with_storage_offset(start / dtype.itemsize()))
        } else {
            // The offset is not a multiple of the item size, so this tensor cannot be a header over the storage that
            // the aligned tensors share.
            let (offset_bytes, length_bytes) = (whole.offset_bytes + start as u64, (end - start) as u64);
            contents.storages.push(ForeignStorage::of_range(file, offset_bytes, length_bytes));
            (contents.storages.len() - 1, own)
        };
        contents.tensors.push(ForeignTensor::new(name, header, storage));
    }
    Ok(contents)
}

/// Returns where the header ends, if the first bytes of a file are there.
pub(crate) fn header_end_bytes(file: &RawFile) -> Result<u64> {
    let length_bytes = file.length_bytes();
    if length_bytes < PREAMBLE_BYTES as u64 {
        return Err(file.bad(format!(
            "not a file of a supported format; the file has only {length_bytes} bytes, and a safetensors file has at \
             least {PREAMBLE_BYTES}"
        )));
    }
    let header_bytes = u64::from_le_bytes(file.preamble::<PREAMBLE_BYTES>()?);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(file.bad(format!(
            "not a file of a supported format; as safetensors, it would have a header of {header_bytes} bytes, but \
             at most {MAX_HEADER_BYTES} are allowed"
        )));
    }
    Ok(PREAMBLE_BYTES as u64 + header_bytes)
}

/// Returns the length of a file according to its header, which is complete.
pub(crate) fn stated_bytes(file: &RawFile) -> Result<u64> {
    let offset_bytes = header_end_bytes(file)?;
    let (_, length_bytes) = header(file, offset_bytes)?;
    Ok(offset_bytes.saturating_add(length_bytes))
}

/// Reads the header. Returns it with its tensors in the order of their elements, and the number of bytes of elements.
fn header(file: &RawFile, offset_bytes: u64) -> Result<(FileHeader, u64)> {
    let header_bytes = offset_bytes - PREAMBLE_BYTES as u64;
    let json = file.header_range(PREAMBLE_BYTES as u64, header_bytes, MAX_HEADER_BYTES)?;
    let Object(mut header) = parse_pieces::<Object<FileHeader>>(file, "the header", json)?;
    let bad = |name: &str, what: &str| file.bad(format!("the header: tensor {name:?} {what}"));
    header.tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    if let Some(pair) = header.tensors.windows(2).find(|pair| matches!(pair, [(a, _), (b, _)] if a == b)) {
        return Err(
            file.bad(format!("the header: {:?} appears twice", pair.first().map_or("", |(name, _)| name)))
        );
    }
    header.tensors.sort_by_key(|(_, info)| info.data_offsets);
    // The elements follow each other without gaps, so every byte belongs to one tensor.
    let mut next = 0;
    for (name, Info { dtype, shape, data_offsets: (start, end) }) in &header.tensors {
        if *start != next || end < start {
            return Err(bad(
                name,
                &format!("has the bytes {start} to {end}, but those from {next} are next"),
            ));
        }
        next = *end;
        if shape.0.len() > MAX_RANK {
            return Err(bad(name, &format!("has more than {MAX_RANK} dimensions")));
        }
        let bits = shape.0.iter().try_fold(dtype.bitsize(), |product, &n| product.checked_mul(n));
        // Also if the product is 0 because of a later dimension, as the safetensors library does.
        let numel = shape.0.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let bits = numel.and(bits).ok_or_else(|| bad(name, "has a shape whose product overflows"))?;
        if bits != (end - start).saturating_mul(8) {
            let what =
                format!("is {dtype} of shape {:?}, which does not take {} bytes", shape.0, end - start);
            return Err(bad(name, &what));
        }
    }
    Ok((header, next as u64))
}
