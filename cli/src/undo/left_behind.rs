//! Tensors that still have elements which a change has replaced under another name.

use stridemap::{Result as LibraryResult, Snapshot, Store, TensorInfo};

use super::Replaced;
use crate::names::quoted;
use crate::ui::{counted, message};

/// The limits on the pairs of tensors that are compared, and on the steps of all comparisons, which take at most a fifth of a
/// second.
const MAX_PAIRS: usize = 200_000;
const MAX_STEPS: u64 = 10_000_000;

impl Replaced {
    /// Says which other tensors still have elements of the replaced ones, because they shared bytes with them. The change has
    /// been made, so this does not fail any more.
    pub(crate) fn note_left_behind(&self, store: &Store) {
        let found = store.latest().and_then(|now| self.left_behind(&now));
        found.ok().flatten().iter().for_each(|note| message(note));
    }

    fn left_behind(&self, now: &Snapshot) -> LibraryResult<Option<String>> {
        let replaced = self.on_storages();
        if replaced.is_empty() {
            return Ok(None);
        }
        let (mut count, mut first) = (0, None);
        let (mut pairs_left, mut steps_left) = (MAX_PAIRS, MAX_STEPS);
        for other in now.iter_tensors("")? {
            let other = other?;
            let Some(olds) = replaced.get(&other.storage_id).filter(|_| !self.has(&other.name)) else {
                continue;
            };
            pairs_left = pairs_left.saturating_sub(olds.len());
            if pairs_left == 0 {
                break;
            }
            let shares = |old: &&&TensorInfo| other.overlaps_within(old, &mut steps_left) == Some(true);
            if let Some(old) = olds.iter().find(shares) {
                count += 1;
                first.get_or_insert_with(|| {
                    (quoted(&other.name).into_owned(), quoted(&old.name).into_owned())
                });
            }
        }
        Ok(first.map(|(other, name)| match count {
            1 => format!("note: {other} shared bytes with {name}, and still has the elements from before"),
            _ => format!(
                "note: {} shared bytes with what was replaced, such as {other} with {name}, and still have the elements \
                 from before",
                counted(count, "tensor")
            ),
        }))
    }
}
