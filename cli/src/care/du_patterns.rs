//! The bytes of some tensors, for `du`.

use std::collections::BTreeSet;
use std::io::Write;

use serde::Serialize;
use stridemap::{StorageInfo, StorageKind, TensorInfo};

use crate::by_storage::by_storage;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::look::sharing::StorageUsage;
use crate::names::{Pattern, one_line, pattern, selecting_hint};
use crate::ui::{Column, Table, bytes_cell};
use crate::undo::freed::{Freed, Frees};
use crate::undo::kept_by_tags;

/// The usage of each pattern, and of all tensors that they select together, if they are several.
#[derive(Serialize)]
pub(super) struct Usages {
    patterns: Vec<PatternUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<Usage>,
}

#[derive(Serialize)]
struct PatternUsage {
    pattern: String,
    #[serde(flatten)]
    usage: Usage,
}

/// Some tensors, and their bytes in the storages of the store or file.
#[derive(Default, Serialize)]
struct Usage {
    #[serde(skip)]
    names: BTreeSet<String>,
    tensor_count: u64,
    /// The bytes that the tensors reach, each counted once.
    reachable_bytes: u64,
    /// How many of the reachable bytes other tensors reach too.
    shared_bytes: u64,
    /// What removing the tensors frees. `None` if it is not known, because a tag or a URL names the generation.
    #[serde(flatten)]
    frees: Option<Frees>,
}

impl Usage {
    /// Adds the tensors of a storage that are selected.
    fn add(
        &mut self,
        (storage, infos): (&StorageInfo, &[TensorInfo]),
        is_outside: bool,
        is_selected: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let (inside, outside): (Vec<_>, Vec<_>) =
            infos.iter().cloned().partition(|info| is_selected(&info.name));
        self.tensor_count += inside.len() as u64;
        if !is_outside && !inside.is_empty() {
            let reached =
                |infos: &[TensorInfo]| Ok::<u64, Error>(StorageUsage::of(storage, infos)?.reachable_bytes);
            let (bytes, outside_bytes, all_bytes) = (reached(&inside)?, reached(&outside)?, reached(infos)?);
            self.reachable_bytes += bytes;
            self.shared_bytes += (bytes + outside_bytes).saturating_sub(all_bytes);
        }
        self.names.extend(inside.into_iter().map(|info| info.name));
        Ok(())
    }
}

/// Returns the usage of each pattern. A pattern that selects no tensor is an error. What a removal frees is known if the input
/// is a store at its newest generation.
pub(super) fn usages(texts: &[String], input: &Input, is_newest: bool) -> Result<Usages> {
    let patterns: Vec<Pattern> = texts.iter().map(|text| pattern(text, input)).collect::<Result<_>>()?;
    let mut by_storage = by_storage(input.tensors("")?)?;
    let mut usages: Vec<Usage> = patterns.iter().map(|_| Usage::default()).collect();
    let mut total = (patterns.len() > 1).then(Usage::default);
    for storage in input.storages() {
        let storage = storage?;
        let infos = by_storage.remove(&storage.id).unwrap_or_default();
        // The bytes of an external storage are outside the store.
        let is_outside = matches!(input, Input::Store(..)) && storage.kind == StorageKind::External;
        for (usage, pattern) in usages.iter_mut().zip(&patterns) {
            usage.add((&storage, &infos), is_outside, |name| pattern.matches(name))?;
        }
        if let Some(total) = &mut total {
            let is_any = |name: &str| patterns.iter().any(|pattern| pattern.matches(name));
            total.add((&storage, &infos), is_outside, is_any)?;
        }
    }
    if let Some((missing, _)) = texts.iter().zip(&usages).find(|(_, usage)| usage.tensor_count == 0) {
        let why = selecting_hint(missing, input)?.unwrap_or_else(|| format!("no tensor matches {missing:?}"));
        return Err(Error::NoMatch(format!("du: {why}")));
    }
    if let (Input::Store(store, snapshot, _), true) = (input, is_newest) {
        for usage in usages.iter_mut().chain(&mut total) {
            let freed = Freed::of(&usage.names, snapshot)?;
            usage.frees = Some(freed.frees(&kept_by_tags(store, freed.ids())?));
        }
    }
    let patterns =
        texts.iter().zip(usages).map(|(pattern, usage)| PatternUsage { pattern: pattern.clone(), usage });
    Ok(Usages { patterns: patterns.collect(), total })
}

const COLUMNS: [Column; 7] = [
    Column::new("name").shortenable_names(),
    Column::new("tensors").right().drop_order(0),
    Column::new("bytes").right().drop_order(2),
    Column::new("shared").right().drop_order(1),
    Column::new("rm frees").right(),
    Column::new("compact frees").right(),
    Column::new("tags keep").right().drop_order(3),
];

pub(super) fn print(usages: &Usages, out: &mut impl Write) -> Result<()> {
    let Usages { patterns, total } = usages;
    let has_frees = patterns.iter().any(|of_one| of_one.usage.frees.is_some());
    let mut table = Table::new(if has_frees { &COLUMNS } else { &COLUMNS[..4] });
    let rows = patterns.iter().map(|PatternUsage { pattern, usage }| (one_line(pattern), usage));
    for (label, usage) in rows.chain(total.iter().map(|usage| ("total".to_owned(), usage))) {
        let frees = usage.frees.as_ref().map(|it| [it.freed_bytes, it.compact_bytes, it.tagged_bytes]);
        let bytes =
            [usage.reachable_bytes, usage.shared_bytes].into_iter().chain(frees.into_iter().flatten());
        let cells = [label, usage.tensor_count.to_string()];
        table.add_row(cells.into_iter().chain(bytes.map(bytes_cell)));
    }
    table.print_data(out)
}
