//! Many small tensors, in a store and in the files of other libraries.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::{Dtype, TensorView};
use stridemap::{Durability, Store, StoreOptions};

use crate::Outcome;
use crate::bench::Bench;

/// The elements of a tensor: float32, 256 bytes.
pub(crate) const ELEMENTS: usize = 64;

/// Returns the name of a tensor, as a model might have it.
pub(crate) fn name(number: usize) -> String {
    format!("layers.{:05}.block.{:02}.weight", number / 64, number % 64)
}

/// Returns a number below `count`. Successive ones are spread over all of them.
pub(crate) fn spread(number: usize, count: usize) -> usize {
    number.wrapping_mul(7_368_787) % count
}

/// Returns a store with `count` tensors. The file system has written it.
pub(crate) fn store(bench: &Bench, count: usize) -> Outcome<PathBuf> {
    bench.kept(&format!("{count}.smap"), |path| {
        let store = Store::create(path)?;
        store.write(|txn| {
            (0..count).try_for_each(|number| txn.save(&name(number), &[number as f32; ELEMENTS]))
        })?;
        Ok(())
    })
}

/// Returns a safetensors file with the same tensors.
pub(crate) fn safetensors(bench: &Bench, count: usize) -> Outcome<PathBuf> {
    bench.kept(&format!("{count}.safetensors"), |path| {
        write_safetensors(path, count)?;
        Ok(File::open(path)?.sync_all()?)
    })
}

/// Writes `count` tensors with the safetensors library.
pub(crate) fn write_safetensors(path: &Path, count: usize) -> Outcome {
    let elements: Vec<[u8; 4 * ELEMENTS]> = (0..count).map(bytes).collect();
    let views = elements
        .iter()
        .zip(0..)
        .map(|(bytes, number)| Ok((name(number), TensorView::new(Dtype::F32, vec![ELEMENTS], bytes)?)));
    let views: HashMap<String, TensorView<'_>> = views.collect::<Outcome<_>>()?;
    Ok(safetensors::serialize_to_file(views, None, path)?)
}

fn bytes(number: usize) -> [u8; 4 * ELEMENTS] {
    let mut bytes = [0; 4 * ELEMENTS];
    bytes.as_chunks_mut().0.fill((number as f32).to_le_bytes());
    bytes
}

/// Opens a store that only this program writes.
pub(crate) fn open_mapped(path: &Path) -> Outcome<Store> {
    // SAFETY: only stridemap writes the stores of this program.
    Ok(unsafe { Store::open_mapped(path)? })
}

/// Opens a store whose commits are not synced.
pub(crate) fn open_unsynced(path: &Path) -> Outcome<Store> {
    Ok(StoreOptions::new().durability(Durability::Process).open(path)?)
}

/// Maps a file that nothing changes while this program runs.
pub(crate) fn map(path: &Path) -> Outcome<Mmap> {
    // SAFETY: nothing writes the file while it is mapped.
    Ok(unsafe { Mmap::map(&File::open(path)?)? })
}
