//! PyTorch checkpoints, in both of the layouts that `torch.save` can write. They are read as data.
//!
//! A checkpoint is a pickle, which is a program for a small stack machine, and storages. [`machine`] implements that
//! machine, but never calls anything: [`call`] matches each call against the few names in [`global`]. What any other
//! call would return is an object that cannot be read. [`flatten`] names the results. [`archive`] and [`legacy`] find the pickle and the storages in the file.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod archive;
mod call;
mod collisions;
mod flatten;
mod global;
mod instruction;
mod legacy;
mod literal;
mod machine;
mod measure;
mod tree;
mod value;

use std::sync::Arc;

use stridemap::Result;

use super::contents::{Contents, Skipped};
use super::file::RawFile;
use super::foreign_storage::ForeignStorage;
use crate::{FileFormat, ForeignOptions};
use flatten::{BytesLeaf, Leaves};
use value::FileStorage;

pub(super) use archive::{is_archive, read as read_archive};
pub(super) use legacy::{TAR_HEADER_BYTES, is_pickle, is_tar, read as read_legacy, tar_error};

/// The maximum length of a pickle. Everything in a model besides its tensors is small.
const MAX_PICKLE_BYTES: u64 = 256 << 20;

/// Returns the maximum length of a pickle in this file. Without this limit, a compressed pickle could unpack to a
/// thousand times its length.
fn pickle_limit(file: &RawFile) -> u64 {
    file.length_bytes().saturating_add(1 << 20).min(MAX_PICKLE_BYTES)
}

/// Decodes the pickle of a checkpoint, and returns its tensors and plain values.
fn leaves_of(file: &RawFile, pickle: &[u8], options: ForeignOptions) -> Result<Leaves> {
    Leaves::of(pickle, file.length_bytes(), file.stem(), options).map_err(|e| file.bad(e))
}

/// Returns the contents of a checkpoint: its leaves, and the storages that its tensors use. `locate` finds a storage in
/// the file, and is called once for each of these storages.
fn contents_of(
    file: &Arc<RawFile>,
    leaves: Leaves,
    mut locate: impl FnMut(&FileStorage) -> Result<ForeignStorage>,
) -> Result<Contents> {
    let Leaves { mut tensors, attributes, bytes, skipped, storages: in_file } = leaves;
    let mut storages = Vec::new();
    let mut placed = vec![None; in_file.len()];
    for tensor in &mut tensors {
        let Some((slot, used)) = placed.get_mut(tensor.storage).zip(in_file.get(tensor.storage)) else {
            continue;
        };
        if slot.is_none() {
            *slot = Some(storages.len());
            storages.push(ForeignStorage { is_imported_whole: true, ..locate(used)? });
        }
        tensor.storage = slot.unwrap_or_default();
    }
    let skipped = skipped.into_iter().map(|(name, what)| Skipped { name, reason: file.bad(what) }).collect();
    let attributes = attributes.into_iter().collect();
    let mut contents =
        Contents { storages, tensors, attributes, skipped, ..Contents::new(FileFormat::PyTorch) };
    for BytesLeaf { name, bytes, is_too_long } in bytes {
        contents.too_long.extend(is_too_long.then(|| name.clone()));
        contents.add_bytes(file, name, bytes)?;
    }
    Ok(contents)
}
