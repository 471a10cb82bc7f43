//! What a store or a file contains, in a few lines.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;
use stridemap::{StorageInfo, StorageKind};

use super::counted_once::CountedOnce;
use super::modules::{Node, Part, Totals, alike_count};
use super::sharing::{self, StorageMap};
use crate::error::Result;
use crate::input::Input;
use crate::names::{has_hidden, quoted};
use crate::remote::is_url;
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
    /// The same modules. Those that differ only in a number are together.
    #[serde(skip)]
    pub(super) alike_modules: Vec<AlikeGroups>,
    pub(super) warnings: Vec<String>,
    /// The totals of the tensors that share no byte with an earlier tensor: see [`CountedOnce`].
    #[serde(skip)]
    pub(super) totals_without_views: Totals,
    /// The totals of the tensors that are in none of the modules.
    #[serde(skip)]
    pub(super) outside: Totals,
}

/// Some of the tensors: those of a dtype, or those in a module.
#[derive(Clone, Serialize)]
pub(super) struct Group {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) totals: Totals,
}

/// At least one group. If there are several, they are alike, and have the same totals.
pub(super) struct AlikeGroups(pub(super) Vec<Group>);

impl AlikeGroups {
    /// Returns the totals of all of them.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.0.iter().for_each(|group| totals.merge(group.totals));
        totals
    }
}

impl Summary {
    /// `maps` are those of all storages, if the caller has read them.
    pub(super) fn of(input: &Input, maps: Option<&[StorageMap]>) -> Result<Self> {
        let (uuid, generation) = match input {
            Input::Store(store, snapshot, _) => (Some(store.uuid()), Some(snapshot.generation())),
            Input::File(..) => (None, None),
        };
        let (mut root, mut dtypes) = (Node::default(), BTreeMap::<&str, Totals>::new());
        let mut counted_once = CountedOnce::default();
        let (mut empty, mut unusual) = (Noted::default(), Noted::default());
        for info in input.tensors("")? {
            let info = info?;
            root.add(&info);
            counted_once.add(&info);
            dtypes.entry(info.header.dtype().name()).or_default().add(&info);
            empty.add_if(info.header.numel() == 0, || info.name.clone());
            unusual.add_if(has_hidden(&info.name), || info.name.clone());
        }
        let (mut storage_count, mut stored_size_bytes) = (0, 0u64);
        let (mut missing, mut changing) = (Noted::default(), 0);
        for storage in input.storages() {
            let storage = storage?;
            storage_count += 1;
            stored_size_bytes = stored_size_bytes.saturating_add(storage.size_bytes);
            missing.add_if(is_missing(&storage), || storage.file.display().to_string());
            changing += u64::from(matches!(storage.kind, StorageKind::Mutable | StorageKind::Live));
        }
        let (totals_without_views, undetermined) = counted_once.totals(input, maps)?;
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
        if changing > 0 && !is_url(input.path()) {
            let storages = counted(changing, "mutable or live storage");
            warnings.push(format!("{storages} without checksums: damage to the elements is not detected"));
        }
        let mut dtypes: Vec<Group> =
            dtypes.into_iter().map(|(name, totals)| Group { name: name.to_owned(), totals }).collect();
        dtypes.sort_by_key(|group| Reverse(group.totals.size_bytes));
        let (mut alike_modules, outside) = top_modules(&root);
        let mut modules: Vec<Group> = alike_modules.iter().flat_map(|alike| alike.0.clone()).collect();
        modules.sort_by_key(|group| Reverse(group.totals.size_bytes));
        alike_modules.sort_by_key(|alike| Reverse(alike.totals().size_bytes));
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
            alike_modules,
            warnings,
            totals_without_views,
            outside,
        })
    }
}

/// Returns the top modules, and the totals of the tensors beside them. If all tensors are in one module, such as `model`,
/// returns the modules in it instead.
fn top_modules(root: &Node) -> (Vec<AlikeGroups>, Totals) {
    let mut top = root.parts();
    let mut prefix = String::new();
    while let [only] = &*top
        && only.node.is_module()
    {
        prefix += &only.text;
        top = only.node.parts();
    }
    let (modules, tensors): (Vec<_>, Vec<_>) = top.into_iter().partition(|part| part.node.is_module());
    let mut outside = Totals::default();
    tensors.iter().for_each(|part| outside.merge(part.node.totals));
    let (mut groups, mut rest) = (Vec::new(), modules.as_slice());
    while !rest.is_empty() {
        let alike;
        (alike, rest) = rest.split_at(alike_count(rest));
        let group =
            |part: &Part<'_>| Group { name: format!("{prefix}{}", part.name()), totals: part.node.totals };
        groups.push(AlikeGroups(alike.iter().map(group).collect()));
    }
    (groups, outside)
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
    fn add_if(&mut self, is_counted: bool, example: impl FnOnce() -> String) {
        if is_counted && self.count == 0 {
            self.example = quoted(&example()).into_owned();
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
