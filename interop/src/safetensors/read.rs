//! Reads the header of a file, and checks it against the file.

use std::sync::Arc;

use safetensors::tensor::{Metadata, TensorInfo};
use stridemap::Result;
use stridemap::import::Layout;
use stridemap_format::limits::MAX_RANK;

use super::dtype::dtype_and_size;
use super::header::{Header, Info, Shape};
use super::json::{Object, parse_pieces};
use super::{MAX_HEADER_BYTES, PREAMBLE_BYTES};
use crate::contents::{Contents, ForeignStorage, ForeignTensor};
use crate::file::RawFile;
use crate::{FileFormat, ForeignOptions};

/// Reads the header of a file, and checks it against the file.
pub(crate) fn read(file: &Arc<RawFile>, options: ForeignOptions) -> Result<Contents> {
    read_within(file, MAX_HEADER_BYTES, options)
}

/// Reads the header of a shard, after headers that leave `rest_bytes` for it and for later ones.
pub(super) fn read_within(file: &Arc<RawFile>, rest_bytes: u64, options: ForeignOptions) -> Result<Contents> {
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
    if header_bytes > rest_bytes {
        return Err(file.bad(format!(
            "with its header of {header_bytes} bytes, the headers of all shards have more than {MAX_HEADER_BYTES} \
             bytes; import the shards one by one"
        )));
    }
    let json = file.header_range(PREAMBLE_BYTES as u64, header_bytes, MAX_HEADER_BYTES)?;
    let Object(Header { tensors, attributes }) = parse_pieces(file, "the header", json)?;
    let mut infos = tensors
        .into_iter()
        .map(|(name, info)| {
            let Info { dtype, shape: Shape(shape), data_offsets } = info;
            if shape.len() > MAX_RANK {
                return Err(file.bad(format!("tensor {name:?} has more than {MAX_RANK} dimensions")));
            }
            Ok((name, TensorInfo { dtype, shape, data_offsets }))
        })
        .collect::<Result<Vec<_>>>()?;
    infos.sort_by_key(|(_, info)| info.data_offsets);

    // Refuses gaps, overlaps, and ranges that do not match dtype and shape.
    let layout = Metadata::new(None, infos.clone());
    let layout = layout.map_err(|e| file.bad(format!("the header: {e}")).with_source(e))?;
    let length_bytes = layout.data_len() as u64;
    let offset_bytes = PREAMBLE_BYTES as u64 + header_bytes;
    file.check_rest(offset_bytes, length_bytes)?;

    let whole = ForeignStorage::of_range(file, offset_bytes, length_bytes);
    let mut contents = Contents {
        format: FileFormat::Safetensors,
        storages: vec![whole.clone()],
        tensors: Vec::with_capacity(infos.len()),
        attributes: attributes.unwrap_or_default(),
        skipped: Vec::new(),
    };
    for (name, info) in infos {
        let Some((dtype, size)) = dtype_and_size(&info) else {
            let TensorInfo { dtype, shape, .. } = info;
            let what = format!("tensor {name:?}: stridemap cannot hold {dtype} of shape {shape:?}");
            contents.skip(options, name, file.bad(what))?;
            continue;
        };
        let layout = Layout::contiguous(&size).map_err(|e| file.bad(format!("tensor {name:?}: {e}")))?;
        let (start, end) = info.data_offsets;
        let is_aligned = start.is_multiple_of(dtype.itemsize());
        let (storage, layout) = if is_aligned {
            let stride = layout.stride().to_vec();
            (0, Layout::new(size, stride, start / dtype.itemsize()).map_err(|e| file.bad(&e))?)
        } else {
            // The offset is not a multiple of the item size, so this tensor cannot be a header over the storage that
            // the aligned tensors share.
            let (offset_bytes, length_bytes) = (whole.offset_bytes + start as u64, (end - start) as u64);
            contents.storages.push(ForeignStorage::of_range(file, offset_bytes, length_bytes));
            (contents.storages.len() - 1, layout)
        };
        contents.tensors.push(ForeignTensor { name, dtype, layout, storage });
    }
    Ok(contents)
}
