//! Detects tensors that share bytes, which are stored once for each tensor by an export or a conversion.

use indicatif::HumanBytes;
use stridemap::TensorInfo;

use crate::by_storage::by_storage;
use crate::error::Result;
use crate::look::sharing::{MAX_STEPS, placed_tensors};
use crate::ui::counted;

/// The maximum number of pairs of tensors that a note names.
const MAX_PAIRS: usize = 4;

/// Returns a note about tensors that share bytes, if there are any, and what follows from that. The tensors are in ascending
/// order of name. `size_bytes` is the length of what is stored for each.
pub(crate) fn note(
    tensors: impl IntoIterator<Item = stridemap::Result<TensorInfo>>,
    size_bytes: impl Fn(&TensorInfo) -> u64,
    consequence: &str,
) -> Result<Option<String>> {
    let by_storage = by_storage(tensors)?;
    let mut steps_left = MAX_STEPS;
    let (mut count, mut more_bytes, mut pairs) = (0u64, 0u64, Vec::new());
    for placed in by_storage.into_values().map(|infos| placed_tensors(infos, &mut steps_left)) {
        for (index, tensor) in placed.iter().enumerate() {
            let earlier = tensor.sharers.first().filter(|first| **first < index);
            let Some(other) = earlier.and_then(|first| placed.get(*first)) else { continue };
            count += 1;
            more_bytes = more_bytes.saturating_add(size_bytes(&tensor.info).min(size_bytes(&other.info)));
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
        "note: {tensors} bytes with another, {consequence} (up to {bytes} extra): {pairs}{rest}"
    )))
}
