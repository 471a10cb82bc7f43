//! `info --all`: the tensors, the storages and the attributes.

use std::io::Write;
use std::sync::Arc;

use super::info::{file_name, print_head};
use super::summary::Summary;
use crate::error::Result;
use crate::input::Input;
use crate::names::{of_scope, one_line, quoted};
use crate::ui::{Column, MAX_ROWS, Table, storage_id};

const TENSORS: [Column; 7] = [
    Column::new("name").shortenable_names(),
    Column::new("dtype"),
    Column::new("size").shortenable(),
    Column::new("stride").shortenable().drop_order(2),
    Column::new("offset").right().drop_order(1),
    Column::new("storage").drop_order(0),
    Column::new("dim names").shortenable().drop_order(3),
];

const STORAGES: [Column; 6] = [
    Column::new("storage"),
    Column::new("kind"),
    Column::new("bytes").right(),
    Column::new("file").shortenable().drop_order(1),
    Column::new("offset").right().drop_order(0),
    Column::new("tensors").right().drop_order(2),
];

pub(super) fn print(summary: &Summary, input: &Input, out: &mut impl Write) -> Result<()> {
    print_head(summary, input, out)?;
    let mut infos = input.sorted(|_| true)?;
    infos.truncate(MAX_ROWS);
    let is_named = infos.iter().any(|tensor| tensor.header.dim_names().is_some());
    let mut tensors = Table::new(if is_named { &TENSORS } else { &TENSORS[..6] });
    for tensor in &infos {
        let row = [
            quoted(&tensor.name).into_owned(),
            tensor.header.dtype().to_string(),
            format!("{:?}", tensor.header.size()),
            format!("{:?}", tensor.header.stride()),
            tensor.header.storage_offset().to_string(),
            storage_id(tensor.storage_id),
        ];
        tensors.add_row(row.into_iter().chain(is_named.then(|| format_dim_names(tensor.header.dim_names()))));
    }
    tensors.print_section(summary.tensor_count, "--json", out)?;

    let mut storages = Table::new(&STORAGES);
    for storage in input.storages().take(MAX_ROWS) {
        let storage = storage?;
        storages.add_row([
            storage_id(storage.id),
            storage.kind.to_string(),
            storage.size_bytes.to_string(),
            one_line(&file_name(&storage, input)),
            storage.offset_bytes.to_string(),
            storage.tensor_count.to_string(),
        ]);
    }
    storages.print_section(summary.storage_count, "--json", out)?;

    let mut last = None;
    for ((scope, key), value) in input.attributes().iter() {
        if last != Some(scope) {
            writeln!(out, "\nattributes{}", of_scope(scope))?;
        }
        writeln!(out, "  {} = {}", one_line(key), one_line(value))?;
        last = Some(scope);
    }
    Ok(())
}

/// Formats dimension names as a list without quotes: "[batch, None]". Empty if no dimension has a name.
pub(crate) fn format_dim_names(names: Option<&[Option<Arc<str>>]>) -> String {
    let names: Vec<&str> =
        names.unwrap_or_default().iter().map(|name| name.as_deref().unwrap_or("None")).collect();
    if names.is_empty() { String::new() } else { format!("[{}]", names.join(", ")) }
}
