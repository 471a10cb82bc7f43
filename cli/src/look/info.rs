//! `info`: describes a store or a file in another format, on one screen.

use std::collections::BTreeMap;
use std::io::Write;

use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use serde_json::{Value, json};
use stridemap::{StorageInfo, StoreOptions};

use super::modules::Totals;
use super::summary::{AlikeGroups, Group, Summary};
use super::tables;
use crate::args::Source;
use crate::error::Result;
use crate::input::Input;
use crate::names::{of_scope, one_line, quoted};
use crate::ui::{
    Column, List, Table, examples, page_width, print_line, shorten, storage_id, tensor_record, width,
    wrapped, write_json,
};

/// The maximum number of lines for dtypes, modules, attributes and warnings, so that the summary fits one screen.
const MAX_DTYPES: usize = 4;
const MAX_MODULES: usize = 6;
const MAX_ATTRIBUTES: usize = 4;
const MAX_WARNINGS: usize = 3;

/// Summarize a store or a file on one screen
///
/// The summary has the parameters, the bytes, the dtypes, the largest modules, the attributes and warnings. Modules that are
/// alike and have consecutive numbers, such as layers.0 to layers.11, are one line, which has the figures of one of them. In a pipe, it has all modules, and each line is
/// a label and its values, with tabs between them.
///
/// .safetensors, .npy, .npz, .pt and .gguf files are read in place; tensors have the names that an import would use. In
/// JSON, a file has no uuid and no generation.
#[derive(clap::Args)]
#[command(after_help = examples(&["info model.safetensors", "info model.smap --all", "info model.smap --json | jq .store"]))]
pub(crate) struct InfoArgs {
    /// Also print all tensors, storages and attributes
    #[arg(long)]
    all: bool,
    /// Print one JSON object; its modules, attributes and warnings are complete
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

pub(crate) fn run(args: &InfoArgs, out: &mut impl Write) -> Result<()> {
    let input = args.source.open(&StoreOptions::new())?;
    let summary = Summary::of(&input, None)?;
    if args.json {
        write_description(&summary, &input, args.all, out)
    } else if args.all {
        tables::print(&summary, &input, out)
    } else {
        print(&summary, &input, out)
    }
}

/// The object that `--json` prints. It is written while the tensors are read.
#[derive(Serialize)]
struct Description<'a, T, S> {
    store: &'a Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storages: Option<S>,
    /// The attributes of the store or file itself.
    attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes_of: BTreeMap<String, BTreeMap<String, String>>,
}

fn write_description(summary: &Summary, input: &Input, has_all: bool, out: &mut impl Write) -> Result<()> {
    let mut attributes_of = BTreeMap::<String, BTreeMap<String, String>>::new();
    for ((scope, key), value) in input.attributes().iter() {
        attributes_of.entry(scope.clone()).or_default().insert(key.clone(), value.clone());
    }
    let attributes = attributes_of.remove("").unwrap_or_default();
    let tensors = List(|| Ok(input.tensors("")?.map(|tensor| tensor.map(|info| tensor_record(&info)))));
    let storages =
        List(|| Ok(input.storages().map(|storage| storage.map(|info| storage_record(&info, input)))));
    write_json(
        out,
        Description {
            store: summary,
            tensors: has_all.then_some(tensors),
            storages: has_all.then_some(storages),
            attributes,
            attributes_of,
        },
    )
}

/// Returns what is known of a storage as JSON.
pub(super) fn storage_record(info: &StorageInfo, input: &Input) -> Value {
    json!({
        "id": storage_id(info.id),
        "kind": info.kind.to_string(),
        "size_bytes": info.size_bytes,
        "file": file_name(info, input),
        "offset_bytes": info.offset_bytes,
        "tensor_count": info.tensor_count,
    })
}

/// Returns the file of a storage. A file inside the store is shown relative to the store's directory.
pub(super) fn file_name(info: &StorageInfo, input: &Input) -> String {
    let inside = match input {
        Input::Store(store, ..) => info.file.strip_prefix(store.path()).ok(),
        Input::File(_) => None,
    };
    inside.unwrap_or(&info.file).display().to_string()
}

const COLUMNS: [Column; 5] = [
    Column::new("          "),
    Column::new("").shortenable(),
    Column::new("tensors").right().drop_order(1),
    Column::new("parameters").right().drop_order(0),
    Column::new("bytes").right(),
];

/// Prints the summary. On a terminal, it has at most 24 lines, however many tensors there are, and
/// more only if warnings take several each.
fn print(summary: &Summary, input: &Input, out: &mut impl Write) -> Result<()> {
    print_head(summary, input, out)?;
    if width().is_none() {
        return print_data(summary, input, out);
    }
    let mut groups = Table::new(&COLUMNS);
    let dtypes: Vec<AlikeGroups> =
        summary.dtypes.iter().map(|group| AlikeGroups(vec![group.clone()])).collect();
    add_groups(&mut groups, "dtypes", &dtypes, MAX_DTYPES);
    let has_outside = summary.outside.tensor_count > 0 && !summary.modules.is_empty();
    add_groups(&mut groups, "modules", &summary.alike_modules, MAX_MODULES - usize::from(has_outside));
    if has_outside {
        groups.add_row(row("", "other tensors".to_owned(), "", summary.outside));
    }
    groups.print_section(0, "--all", out)?;
    let shortened = |item: &str, width| vec![shorten(item, width)];
    print_list("attributes", &attributes(input), MAX_ATTRIBUTES, shortened, out)?;
    print_list("warnings", &summary.warnings, MAX_WARNINGS, wrapped, out)
}

/// Prints all groups, attributes and warnings, each in a row that begins with its label.
fn print_data(summary: &Summary, input: &Input, out: &mut impl Write) -> Result<()> {
    for (label, groups) in [("dtypes", &summary.dtypes), ("modules", &summary.modules)] {
        for Group { name, totals } in groups {
            let Totals { tensor_count, numel, size_bytes } = totals;
            writeln!(out, "{label}\t{}\t{tensor_count}\t{numel}\t{size_bytes}", quoted(name))?;
        }
    }
    for (label, items) in [("attributes", &attributes(input)), ("warnings", &summary.warnings)] {
        items.iter().try_for_each(|item| writeln!(out, "{label}\t{item}"))?;
    }
    Ok(())
}

/// Returns a line for each attribute.
fn attributes(input: &Input) -> Vec<String> {
    let line = |((scope, key), value): (&(String, String), &String)| {
        format!("{}{} = {}", one_line(key), of_scope(scope), one_line(value))
    };
    input.attributes().iter().map(line).collect()
}

/// Prints what `info` and `info --all` begin with.
pub(super) fn print_head(summary: &Summary, input: &Input, out: &mut impl Write) -> Result<()> {
    let mut line = |label: &str, value: &str| print_line(label, value, 12, out);
    line("path", &one_line(&summary.path))?;
    match input {
        Input::Store(store, snapshot, _) => {
            line("format", &format!("store, generation {}", snapshot.generation()))?;
            line("uuid", &store.uuid())?;
        }
        Input::File(file) => line("format", file.format().name())?,
    }
    let Totals { numel, size_bytes, .. } = summary.totals_without_views;
    let has_views = numel != summary.numel;
    if width().is_none() {
        line("tensors", &summary.tensor_count.to_string())?;
        line("parameters", &numel.to_string())?;
        line("bytes", &size_bytes.to_string())?;
        if has_views {
            line("parameters with views", &summary.numel.to_string())?;
            line("bytes with views", &summary.logical_size_bytes.to_string())?;
        }
        line("storages", &summary.storage_count.to_string())?;
        return line("stored bytes", &summary.stored_size_bytes.to_string());
    }
    let own = format!("{} parameters, {}", HumanCount(numel), HumanBytes(size_bytes));
    let (all_numel, all_bytes) = (HumanCount(summary.numel), HumanBytes(summary.logical_size_bytes));
    let views = if has_views { format!(" (with views: {all_numel}, {all_bytes})") } else { String::new() };
    line("tensors", &format!("{}, {own}{views}", HumanCount(summary.tensor_count)))?;
    let stored = HumanBytes(summary.stored_size_bytes);
    line("storages", &format!("{}, {stored}", HumanCount(summary.storage_count)))
}

/// Adds the first groups, and what the others have together.
fn add_groups(table: &mut Table<'_>, label: &str, groups: &[AlikeGroups], most: usize) {
    let shown = if groups.len() > most { most - 1 } else { groups.len() };
    for (index, alike) in groups.iter().take(shown).enumerate() {
        let label = if index == 0 { label } else { "" };
        let name = |group: &Group| quoted(&group.name).into_owned();
        match &*alike.0 {
            [first, .., last] => {
                let names = format!("{} … {}", name(first), name(last));
                let times = format!("{} × ", HumanCount(alike.0.len() as u64));
                table.add_row(row(label, names, &times, first.totals));
            }
            [one] => table.add_row(row(label, name(one), "", one.totals)),
            [] => {}
        }
    }
    let others = groups.get(shown..).unwrap_or_default();
    if !others.is_empty() {
        let mut rest = Totals::default();
        others.iter().for_each(|alike| rest.merge(alike.totals()));
        let count = others.iter().map(|alike| alike.0.len() as u64).sum();
        table.add_row(row("", format!("{} more", HumanCount(count)), "", rest));
    }
}

/// Returns a row with the totals of one of as many groups as `times` says.
fn row(label: &str, name: String, times: &str, totals: Totals) -> [String; COLUMNS.len()] {
    [
        label.to_owned(),
        name,
        format!("{times}{}", HumanCount(totals.tensor_count)),
        format!("{times}{}", HumanCount(totals.numel)),
        format!("{times}{}", HumanBytes(totals.size_bytes)),
    ]
}

/// Prints a list below a label. `fit` divides or shortens an item to the width that it has.
fn print_list(
    label: &str,
    items: &[String],
    most: usize,
    fit: impl Fn(&str, usize) -> Vec<String>,
    out: &mut impl Write,
) -> Result<()> {
    let shown = if items.len() > most { most - 1 } else { items.len() };
    let left_out = items.len() - shown;
    let more = (left_out > 0).then(|| format!("{left_out} more; --all has all of them"));
    let lines = items.iter().take(shown).chain(&more);
    let lines: Vec<String> =
        lines.flat_map(|item| fit(item, page_width().saturating_sub(12).max(1))).collect();
    for (index, line) in lines.iter().enumerate() {
        print_line(if index == 0 { label } else { "" }, line, 12, out)?;
    }
    Ok(())
}
