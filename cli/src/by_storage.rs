//! The tensors of each storage.

use std::collections::BTreeMap;

use stridemap::TensorInfo;

use crate::error::Result;

/// Returns the headers of tensors by the id of their storage, each list in the order given.
pub(crate) fn by_storage(
    infos: impl IntoIterator<Item = stridemap::Result<TensorInfo>>,
) -> Result<BTreeMap<u64, Vec<TensorInfo>>> {
    let mut by_storage = BTreeMap::<u64, Vec<TensorInfo>>::new();
    for info in infos {
        let info = info?;
        by_storage.entry(info.storage_id).or_default().push(info);
    }
    Ok(by_storage)
}
