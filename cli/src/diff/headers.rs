//! Compares the layouts of two tensors of the same dtype and size: their strides and shared bytes.

use std::collections::{BTreeSet, HashMap};

use serde_json::json;
use stridemap::TensorInfo;

use super::finding::{Finding, Kind};
use super::values::Side;
use crate::error::Result;
use crate::input::Input;
use crate::look::counted_once::CountedOnce;
use crate::look::sharing::{self, StorageMap};
use crate::names::quoted;
use crate::ui::warn;

/// Returns whether two headers of the same size have equivalent strides. The stride of an axis of size 1 is ignored,
/// and so are all strides if there are no elements.
pub(super) fn have_equal_strides(a: &TensorInfo, b: &TensorInfo) -> bool {
    let mut axes = a.header.size().iter().zip(a.header.stride().iter().zip(b.header.stride()));
    a.header.numel() == 0 || axes.all(|(&n, (a, b))| n < 2 || a == b)
}

/// The tensors of A and of B that share bytes with others.
pub(super) struct Sharing {
    a: Sharers,
    b: Sharers,
}

/// For each tensor that shares bytes: its storage offset, and the names of the tensors that it shares bytes with.
type Sharers = HashMap<String, (usize, BTreeSet<String>)>;

impl Sharing {
    pub(super) fn of(a: &Input, b: &Input) -> Result<Self> {
        Ok(Sharing { a: sharers(a)?, b: sharers(b)? })
    }

    /// Returns the same if there may be any such tensors, which is found out faster.
    pub(super) fn if_any(a: &Input, b: &Input) -> Result<Option<Self>> {
        for input in [a, b] {
            let mut tensors = CountedOnce::default();
            input.tensors("")?.try_for_each(|info| info.map(|info| tensors.add(&info)))?;
            if tensors.may_share_bytes() {
                return Sharing::of(a, b).map(Some);
            }
        }
        Ok(None)
    }

    /// Compares how a tensor shares bytes in A and in B. Considers only the sharers with an earlier name, so that each
    /// pair of tensors that share bytes is compared once.
    pub(super) fn compare(&self, a: &TensorInfo, b: &TensorInfo) -> Option<Finding> {
        let none = BTreeSet::new();
        let earlier = |sharers: &Sharers, name: &String| {
            let names = sharers.get(name).map_or(&none, |(_, names)| names);
            names.range::<String, _>(..name.clone()).cloned().collect::<BTreeSet<_>>()
        };
        let (in_a, in_b) = (earlier(&self.a, &a.name), earlier(&self.b, &b.name));
        for (side, here, there) in [(Side::A, &in_a, &in_b), (Side::B, &in_b, &in_a)] {
            if let Some(name) = here.difference(there).next() {
                let text = format!("shares bytes with {} only in {}", quoted(name), side.name());
                return Some(Finding::new(a, Kind::Sharing, json!({ "side": side, "with": name }), text));
            }
        }
        let name = in_a.into_iter().next()?;
        let from = |sharers: &Sharers, offset: usize| {
            Some(offset.cast_signed() - sharers.get(&name)?.0.cast_signed())
        };
        let (in_a, in_b) =
            (from(&self.a, a.header.storage_offset())?, from(&self.b, b.header.storage_offset())?);
        let text = format!("offset from {} {in_a}, {in_b}", quoted(&name));
        let record = json!({ "with": name, "a": in_a, "b": in_b });
        (in_a != in_b).then(|| Finding::new(a, Kind::Offset, record, text))
    }
}

fn sharers(input: &Input) -> Result<Sharers> {
    let (mut sharers, mut undetermined) = (Sharers::new(), 0);
    for map in StorageMap::read_all(input)? {
        undetermined += map.undetermined_count();
        for tensor in map.tensors.iter().filter(|tensor| !tensor.sharers.is_empty()) {
            let name = |&other: &usize| Some(map.tensors.get(other)?.info.name.clone());
            let names = tensor.sharers.iter().filter_map(name).collect();
            sharers.insert(tensor.info.name.clone(), (tensor.info.header.storage_offset(), names));
        }
    }
    if undetermined > 0 {
        warn(&format!("diff: {}: {}", input.path().display(), sharing::undetermined(undetermined)));
    }
    Ok(sharers)
}
