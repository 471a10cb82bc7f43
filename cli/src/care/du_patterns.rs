//! The bytes of some tensors, for `du`.

use std::io::Write;

use serde::Serialize;
use stridemap::{StorageKind, TensorInfo};

use crate::error::{Error, Result};
use crate::input::Input;
use crate::look::sharing::{StorageUsage, by_storage};
use crate::names::{Pattern, one_line, pattern, selecting_hint};
use crate::ui::{Column, Table, bytes_cell};

/// The tensors that a pattern selects, and their bytes in the storages of the store or file.
#[derive(Default, Serialize)]
pub(super) struct PatternUsage {
    pattern: String,
    tensor_count: u64,
    /// The bytes that the tensors reach, each counted once.
    reachable_bytes: u64,
    /// How many of the reachable bytes other tensors reach too.
    shared_bytes: u64,
}

/// Returns the usage of each pattern. A pattern that selects no tensor is an error.
pub(super) fn usages(texts: &[String], input: &Input) -> Result<Vec<PatternUsage>> {
    let patterns: Vec<Pattern> = texts.iter().map(|text| pattern(text, input)).collect::<Result<_>>()?;
    let mut by_storage = by_storage(input.tensors("")?)?;
    let usage = |text: &String| PatternUsage { pattern: text.clone(), ..PatternUsage::default() };
    let mut usages: Vec<PatternUsage> = texts.iter().map(usage).collect();
    for storage in input.storages() {
        let storage = storage?;
        let infos = by_storage.remove(&storage.id).unwrap_or_default();
        let reached =
            |infos: &[TensorInfo]| Ok::<u64, Error>(StorageUsage::of(&storage, infos)?.reachable_bytes);
        for (usage, pattern) in usages.iter_mut().zip(&patterns) {
            let (inside, outside): (Vec<_>, Vec<_>) =
                infos.iter().cloned().partition(|info| pattern.matches(&info.name));
            usage.tensor_count += inside.len() as u64;
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
    let Some(missing) = usages.iter().find(|usage| usage.tensor_count == 0) else { return Ok(usages) };
    let why = selecting_hint(&missing.pattern, input)?
        .unwrap_or_else(|| format!("no tensor matches {:?}", missing.pattern));
    Err(Error::NoMatch(format!("du: {why}")))
}

const COLUMNS: [Column; 4] = [
    Column::new("name").shortenable_names(),
    Column::new("tensors").right().drop_order(0),
    Column::new("bytes").right(),
    Column::new("shared").right().drop_order(1),
];

pub(super) fn print(usages: &[PatternUsage], out: &mut impl Write) -> Result<()> {
    let mut table = Table::new(&COLUMNS);
    for usage in usages {
        let PatternUsage { pattern, tensor_count, reachable_bytes, shared_bytes } = usage;
        let bytes = [*reachable_bytes, *shared_bytes].map(bytes_cell);
        table.add_row([one_line(pattern), tensor_count.to_string()].into_iter().chain(bytes));
    }
    table.print_data(out)
}
