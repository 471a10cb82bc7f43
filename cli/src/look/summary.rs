//! What a store or a file contains, in a few lines.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;
use stridemap::{StorageInfo, StorageKind};

use super::modules::{Node, Totals};
use super::sharing::{self, PlacedTensor, StorageMap};
use crate::error::Result;
use crate::input::Input;
use crate::names::{one_line, quoted};
use crate::ui::counted;

#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) path: String,
    /// `None` for a file.
    pub(super) uuid: Option<String>,
    pub(super) generation: Option<u64>,
    pub(super) tensor_count: u64,
    pub(super) storage_count: u64,
    #[serde(rename = "nbytes")]
    pub(super) logical_size_bytes: u64,
    pub(super) stored_size_bytes: u64,
    format: &'static str,
    pub(super) numel: u64,
    pub(super) dtypes: Vec<Group>,
    pub(super) modules: Vec<Group>,
    pub(super) warnings: Vec<String>,
    /// The totals of the tensors that share no byte with an earlier tensor: see [`without_views`].
    #[serde(skip)]
    pub(super) totals_without_views: Totals,
    /// The totals of the tensors that are in none of the modules.
    #[serde(skip)]
    pub(super) outside: Totals,
}

/// Some of the tensors: those of a dtype, or those in a module.
#[derive(Serialize)]
pub(super) struct Group {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) totals: Totals,
}

impl Summary {
    pub(super) fn of(input: &Input) -> Result<Self> {
        let (uuid, generation) = match input {
            Input::Store(store, snapshot, _) => (Some(store.uuid()), Some(snapshot.generation())),
            Input::File(..) => (None, None),
        };
        let (mut root, mut dtypes) = (Node::default(), BTreeMap::<&str, Totals>::new());
        let mut ranges = Vec::new();
        let (mut empty, mut unusual) = (Noted::default(), Noted::default());
        for info in input.tensors("")? {
            let info = info?;
            root.add(&info);
            ranges.extend(info.header.byte_range().map(|range| (info.storage_id, range.start, range.end)));
            dtypes.entry(info.header.dtype().name()).or_default().add(&info);
            empty.add(&info.name, info.header.numel() == 0);
            unusual.add(&info.name, one_line(&info.name) != info.name);
        }
        let (mut storage_count, mut stored_size_bytes) = (0, 0u64);
        let (mut missing, mut changing) = (Noted::default(), 0);
        for storage in input.storages() {
            let storage = storage?;
            storage_count += 1;
            stored_size_bytes = stored_size_bytes.saturating_add(storage.size_bytes);
            missing.add(&storage.file.display().to_string(), is_missing(&storage));
            changing += u64::from(matches!(storage.kind, StorageKind::Mutable | StorageKind::Live));
        }
        ranges.sort_unstable();
        let is_overlap = |pair: &[(u64, u64, u64)]| match *pair {
            [(storage, _, end), (next_storage, next, _)] => storage == next_storage && next < end,
            _ => false,
        };
        let (totals_without_views, undetermined) =
            if ranges.windows(2).any(is_overlap) { without_views(input)? } else { (root.totals, 0) };
        let mut warnings = Vec::new();
        if undetermined > 0 {
            warnings.push(sharing::undetermined(undetermined));
        }
        warnings.extend(missing.warning(
            "file that was imported in place is missing or too short",
            "files that were imported in place are missing or too short",
        ));
        warnings.extend(empty.warning("tensor has no elements", "tensors have no elements"));
        warnings.extend(unusual.warning("name has hidden characters", "names have hidden characters"));
        if changing > 0 {
            let storages = counted(changing, "mutable or live storage");
            warnings.push(format!("{storages} without checksums: damage to the elements is not detected"));
        }
        let mut dtypes: Vec<Group> =
            dtypes.into_iter().map(|(name, totals)| Group { name: name.to_owned(), totals }).collect();
        dtypes.sort_by_key(|group| std::cmp::Reverse(group.totals.size_bytes));
        let (modules, outside) = top_modules(&root);
        Ok(Summary {
            path: input.path().display().to_string(),
            uuid,
            generation,
            tensor_count: root.totals.tensor_count,
            storage_count,
            logical_size_bytes: root.totals.size_bytes,
            stored_size_bytes,
            format: input.format(),
            numel: root.totals.numel,
            dtypes,
            modules,
            warnings,
            totals_without_views,
            outside,
        })
    }
}

/// Returns the totals of the tensors that share no byte with an earlier tensor. The order is that of their first bytes;
/// of tensors with the same first byte, the longest comes first. Also returns how many tensors there are of which it
/// could not be found out whether they share bytes.
fn without_views(input: &Input) -> Result<(Totals, u64)> {
    let (mut totals, mut undetermined) = (Totals::default(), 0);
    for map in StorageMap::read_all(input)? {
        let is_first = |(index, tensor): &(usize, &PlacedTensor)| {
            tensor.sharers.first().is_none_or(|first| first > index)
        };
        map.tensors.iter().enumerate().filter(is_first).for_each(|(_, tensor)| totals.add(&tensor.info));
        undetermined += map.undetermined_count();
    }
    Ok((totals, undetermined))
}

/// Returns the top modules, the largest first, and the totals of the tensors beside them. If all tensors are in one
/// module, such as `model`, returns the modules in it instead.
fn top_modules(root: &Node) -> (Vec<Group>, Totals) {
    let mut top = root.parts();
    let mut prefix = String::new();
    while let [(name, only)] = top.as_slice()
        && only.tensor.is_none()
    {
        prefix.extend([name, "."]);
        top = only.parts();
    }
    let (modules, tensors): (Vec<_>, Vec<_>) = top.into_iter().partition(|(_, node)| node.is_module());
    let mut outside = Totals::default();
    tensors.iter().for_each(|(_, node)| outside.merge(node.totals));
    let group =
        |(name, node): (String, &Node)| Group { name: format!("{prefix}{name}"), totals: node.totals };
    let mut modules: Vec<Group> = modules.into_iter().map(group).collect();
    modules.sort_by_key(|group| std::cmp::Reverse(group.totals.size_bytes));
    (modules, outside)
}

/// Returns whether a file that was imported in place does not contain all bytes of the storage.
fn is_missing(storage: &StorageInfo) -> bool {
    let end = storage.offset_bytes.saturating_add(storage.size_bytes);
    storage.kind == StorageKind::External && fs::metadata(&storage.file).map_or(true, |file| file.len() < end)
}

/// A count, and the first example.
#[derive(Default)]
struct Noted {
    count: u64,
    example: String,
}

impl Noted {
    fn add(&mut self, example: &str, is_counted: bool) {
        if is_counted && self.count == 0 {
            self.example = quoted(example).into_owned();
        }
        self.count += u64::from(is_counted);
    }

    fn warning(&self, one: &str, many: &str) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some(format!("1 {one}: {}", self.example)),
            n => Some(format!("{n} {many}, such as {}", self.example)),
        }
    }
}
