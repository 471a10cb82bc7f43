//! PyTorch checkpoints, as `torch.save` writes them, read as data in both of its layouts.
//!
//! A checkpoint is a pickle, which is a program for a small stack machine, and storages. [`pickle`] implements that
//! machine without calls. [`known`] lists the few names for tensors and their parts. [`flatten`] names the results.
//! [`archive`] and [`legacy`] find the pickle and the storages in the file.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod archive;
mod flatten;
mod known;
mod legacy;
mod pickle;
mod text;

use stridemap::Result;

use super::contents::{Contents, ForeignStorage};
use super::file::RawFile;
use super::foreign::FileFormat;
use flatten::Leaves;
use pickle::Root;

pub(super) use archive::{is_archive, read as read_archive};
pub(super) use legacy::{is_pickle, is_tar, read as read_legacy, refuse_tar};

/// The maximum length of a pickle. Everything in a model besides its tensors is small.
const MAX_PICKLE_BYTES: u64 = 256 << 20;

/// Returns the maximum length of a pickle in this file. A compressed one could unpack to a thousand times its bytes.
fn pickle_limit(file: &RawFile) -> u64 {
    file.length_bytes().saturating_add(1 << 20).min(MAX_PICKLE_BYTES)
}

/// Assigns leaves to storages. `place` finds a storage in the file, and is called once for each that is used.
fn contents(
    leaves: Leaves,
    roots: &[Root],
    mut place: impl FnMut(&Root) -> Result<ForeignStorage>,
) -> Result<Contents> {
    let mut storages = Vec::new();
    let mut placed = vec![None; roots.len()];
    let mut tensors = leaves.tensors;
    for tensor in &mut tensors {
        let (Some(slot), Some(root)) = (placed.get_mut(tensor.storage), roots.get(tensor.storage)) else {
            continue;
        };
        tensor.storage = match *slot {
            Some(storage) => storage,
            None => {
                storages.push(place(root)?);
                *slot.insert(storages.len().saturating_sub(1))
            }
        };
    }
    Ok(Contents {
        format: FileFormat::PyTorch,
        storages,
        tensors,
        attributes: leaves.attributes,
        keeps_storages: true,
    })
}
