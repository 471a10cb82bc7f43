//! The bytes of some tensors, for `du`.

use std::collections::BTreeSet;
use std::io::Write;

use serde::Serialize;
use stridemap::{StorageKind, TensorInfo};

use crate::by_storage::by_storage;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::look::sharing::StorageUsage;
use crate::names::{Pattern, one_line, pattern, selecting_hint};
use crate::ui::{Column, Table, bytes_cell};
use crate::undo::freed::{Freed, Frees};
use crate::undo::kept_by_tags;

/// The tensors that a pattern selects, and their bytes in the storages of the store or file.
#[derive(Default, Serialize)]
pub(super) struct PatternUsage {
    pattern: String,
    tensor_count: u64,
    /// The bytes that the tensors reach, each counted once.
    reachable_bytes: u64,
    /// How many of the reachable bytes other tensors reach too.
    shared_bytes: u64,
    /// What removing the tensors frees. `None` if it is not known, because a tag or a URL names the generation.
    #[serde(flatten)]
    frees: Option<Frees>,
}

/// Returns the usage of each pattern. A pattern that selects no tensor is an error. What a removal frees is known if the input
/// is a store at its newest generation.
pub(super) fn usages(texts: &[String], input: &Input, is_newest: bool) -> Result<Vec<PatternUsage>> {
    let patterns: Vec<Pattern> = texts.iter().map(|text| pattern(text, input)).collect::<Result<_>>()?;
    let mut by_storage = by_storage(input.tensors("")?)?;
    let usage = |text: &String| PatternUsage { pattern: text.clone(), ..PatternUsage::default() };
    let mut usages: Vec<PatternUsage> = texts.iter().map(usage).collect();
    let mut selected = vec![BTreeSet::new(); texts.len()];
    for storage in input.storages() {
        let storage = storage?;
        let infos = by_storage.remove(&storage.id).unwrap_or_default();
        let reached =
            |infos: &[TensorInfo]| Ok::<u64, Error>(StorageUsage::of(&storage, infos)?.reachable_bytes);
        for ((usage, pattern), selected) in usages.iter_mut().zip(&patterns).zip(&mut selected) {
            let (inside, outside): (Vec<_>, Vec<_>) =
                infos.iter().cloned().partition(|info| pattern.matches(&info.name));
            usage.tensor_count += inside.len() as u64;
            selected.extend(inside.iter().map(|info| info.name.clone()));
            // The bytes of an external storage are outside the store.
            let is_outside = matches!(input, Input::Store(..)) && storage.kind == StorageKind::External;
            if !is_outside && !inside.is_empty() {
                let (bytes, outside_bytes, all_bytes) =
                    (reached(&inside)?, reached(&outside)?, reached(&infos)?);
                usage.reachable_bytes += bytes;
                usage.shared_bytes += (bytes + outside_bytes).saturating_sub(all_bytes);
            }
        }
    }
    if let Some(missing) = usages.iter().find(|usage| usage.tensor_count == 0) {
        let why = selecting_hint(&missing.pattern, input)?
            .unwrap_or_else(|| format!("no tensor matches {:?}", missing.pattern));
        return Err(Error::NoMatch(format!("du: {why}")));
    }
    if let (Input::Store(store, snapshot, _), true) = (input, is_newest) {
        for (usage, names) in usages.iter_mut().zip(&selected) {
            let freed = Freed::of(names, snapshot)?;
            usage.frees = Some(freed.frees(&kept_by_tags(store, freed.ids())?));
        }
    }
    Ok(usages)
}

const COLUMNS: [Column; 7] = [
    Column::new("name").shortenable_names(),
    Column::new("tensors").right().drop_order(0),
    Column::new("bytes").right(),
    Column::new("shared").right().drop_order(1),
    Column::new("rm frees").right().drop_order(4),
    Column::new("compact frees").right().drop_order(3),
    Column::new("tags keep").right().drop_order(2),
];

pub(super) fn print(usages: &[PatternUsage], out: &mut impl Write) -> Result<()> {
    let has_frees = usages.iter().any(|usage| usage.frees.is_some());
    let mut table = Table::new(if has_frees { &COLUMNS } else { &COLUMNS[..4] });
    for usage in usages {
        let PatternUsage { pattern, tensor_count, reachable_bytes, shared_bytes, frees } = usage;
        let frees = frees.as_ref().map(|it| [it.freed_bytes, it.compact_bytes, it.tagged_bytes]);
        let bytes = [*reachable_bytes, *shared_bytes].into_iter().chain(frees.into_iter().flatten());
        let cells = [one_line(pattern), tensor_count.to_string()];
        table.add_row(cells.into_iter().chain(bytes.map(bytes_cell)));
    }
    table.print_data(out)
}
