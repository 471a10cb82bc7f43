//! Detects tensors that share bytes: an exported file stores such bytes once for each tensor.

use indicatif::HumanBytes;
use stridemap::TensorInfo;

use crate::by_storage::by_storage;
use crate::error::Result;
use crate::look::sharing::{MAX_STEPS, placed_tensors};
use crate::ui::counted;

/// The maximum number of pairs of tensors that a note names.
const MAX_PAIRS: usize = 4;

/// Returns a note about tensors that share bytes, if there are any. The tensors are in ascending order of name.
pub(crate) fn note(
    tensors: impl IntoIterator<Item = stridemap::Result<TensorInfo>>,
) -> Result<Option<String>> {
    let by_storage = by_storage(tensors)?;
    let mut steps_left = MAX_STEPS;
    let (mut count, mut more_bytes, mut pairs) = (0u64, 0u64, Vec::new());
    for placed in by_storage.into_values().map(|infos| placed_tensors(infos, &mut steps_left)) {
        for (index, tensor) in placed.iter().enumerate() {
            let earlier = tensor.sharers.first().filter(|first| **first < index);
            let Some(other) = earlier.and_then(|first| placed.get(*first)) else { continue };
            count += 1;
            more_bytes =
                more_bytes.saturating_add(tensor.info.header.nbytes().min(other.info.header.nbytes()) as u64);
            if pairs.len() < MAX_PAIRS {
                pairs.push(format!("{:?} with {:?}", tensor.info.name, other.info.name));
            }
        }
    }
    let rest = count - pairs.len() as u64;
    let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
    let tensors = match count {
        0 => return Ok(None),
        1 => "1 tensor shares".to_owned(),
        _ => format!("{} share", counted(count, "tensor")),
    };
    let (bytes, pairs) = (HumanBytes(more_bytes), pairs.join(", "));
    Ok(Some(format!(
        "note: {tensors} bytes with another, so the file stores them twice (up to {bytes} extra): {pairs}{rest}"
    )))
}
