//! `inspect` and `ls`: describe a store or a file in another format.

use std::collections::BTreeMap;
use std::io::Write;

use comfy_table::{Table, presets};
use indicatif::HumanBytes;
use serde::Serialize;
use stridemap::{StorageInfo, StoreOptions, TensorInfo};

use crate::args::{InspectArgs, LsArgs};
use crate::error::Result;
use crate::expr::quoted;
use crate::output::{List, TensorRecord, one_line, storage_id, write_json};
use crate::source::Source;

/// The maximum number of rows in a printed table. More would be hard to read, and a table is built in memory. JSON
/// output has no limit.
pub(crate) const MAX_ROWS: usize = 1000;

pub(crate) fn ls(args: &LsArgs, out: &mut impl Write) -> Result<()> {
    let source = Source::open(&args.source, &args.reading, &StoreOptions::new())?;
    for tensor in source.tensors(&args.prefix)? {
        let tensor = tensor?;
        if args.json {
            write_json(out, TensorRecord::from(tensor))?;
        } else {
            writeln!(out, "{}\t{}\t{:?}", quoted(&tensor.name), tensor.dtype, tensor.size())?;
        }
    }
    Ok(())
}

pub(crate) fn inspect(args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    let source = Source::open(&args.source, &args.reading, &StoreOptions::new())?;
    let summary = Summary::of(&source)?;
    if args.json {
        let attributes = source.attributes();
        let mut attributes_of: AttributesOf<'_> = BTreeMap::new();
        for ((scope, key), value) in attributes.iter().filter(|((scope, _), _)| !scope.is_empty()) {
            attributes_of.entry(scope).or_default().insert(key, value);
        }
        write_json(
            out,
            Inspection {
                store: summary,
                tensors: List(|| Ok(source.tensors("")?.map(|tensor| tensor.map(TensorRecord::from)))),
                storages: List(|| {
                    Ok(source.storages().map(|storage| storage.map(|info| StorageRecord::new(info, &source))))
                }),
                attributes_of,
            },
        )
    } else {
        print(&summary, &source, out)
    }
}

#[derive(Serialize)]
struct Inspection<'a, T, S> {
    store: Summary,
    tensors: T,
    storages: S,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes_of: AttributesOf<'a>,
}

/// The attributes of tensors and prefixes, by key.
type AttributesOf<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>;

#[derive(Serialize)]
struct Summary {
    path: String,
    /// `None` for a file.
    uuid: Option<String>,
    generation: Option<u64>,
    tensor_count: u64,
    storage_count: u64,
    logical_size_bytes: u64,
    stored_size_bytes: u64,
}

impl Summary {
    fn of(source: &Source) -> Result<Self> {
        let (uuid, generation) = match source {
            Source::Store(store, snapshot) => (Some(store.uuid()), Some(snapshot.generation())),
            Source::File(..) => (None, None),
        };
        let mut summary = Summary {
            path: source.path().display().to_string(),
            uuid,
            generation,
            tensor_count: 0,
            storage_count: 0,
            logical_size_bytes: 0,
            stored_size_bytes: 0,
        };
        for tensor in source.tensors("")? {
            summary.tensor_count += 1;
            summary.logical_size_bytes = summary.logical_size_bytes.saturating_add(tensor?.nbytes() as u64);
        }
        for storage in source.storages() {
            summary.storage_count += 1;
            summary.stored_size_bytes = summary.stored_size_bytes.saturating_add(storage?.size_bytes);
        }
        Ok(summary)
    }
}

#[derive(Serialize)]
struct StorageRecord {
    id: String,
    kind: &'static str,
    size_bytes: u64,
    file: String,
    offset_bytes: u64,
    tensor_count: u64,
}

impl StorageRecord {
    /// Creates the record. A file inside the store is shown relative to the store's directory.
    fn new(info: StorageInfo, source: &Source) -> Self {
        let file = match source {
            Source::Store(store, _) => info.file.strip_prefix(store.path()).unwrap_or(&info.file),
            Source::File(..) => &info.file,
        };
        StorageRecord {
            id: storage_id(info.id),
            kind: info.kind.name(),
            size_bytes: info.size_bytes,
            file: file.display().to_string(),
            offset_bytes: info.offset_bytes,
            tensor_count: info.tensor_count,
        }
    }
}

fn print(summary: &Summary, source: &Source, out: &mut impl Write) -> Result<()> {
    writeln!(out, "path        {}", one_line(&summary.path))?;
    match source {
        Source::Store(store, snapshot) => {
            writeln!(out, "uuid        {}", store.uuid())?;
            writeln!(out, "generation  {}", snapshot.generation())?;
        }
        Source::File(file, _) => writeln!(out, "format      {}", file.format())?,
    }
    writeln!(out, "tensors     {}, {}", summary.tensor_count, HumanBytes(summary.logical_size_bytes))?;
    writeln!(out, "storages    {}, {}", summary.storage_count, HumanBytes(summary.stored_size_bytes))?;

    let infos = source.tensors("")?.take(MAX_ROWS).collect::<stridemap::Result<Vec<TensorInfo>>>()?;
    let is_named = infos.iter().any(|tensor| tensor.dim_names.is_some());
    let names = is_named.then_some("dim names");
    let header = ["name", "dtype", "size", "stride", "offset", "storage"].into_iter().chain(names);
    let mut tensors = columns(header);
    for tensor in &infos {
        let row = [
            quoted(&tensor.name).into_owned(),
            tensor.dtype.to_string(),
            format!("{:?}", tensor.size()),
            format!("{:?}", tensor.stride()),
            tensor.storage_offset().to_string(),
            storage_id(tensor.storage_id),
        ];
        tensors
            .add_row(row.into_iter().chain(is_named.then(|| format_dim_names(tensor.dim_names.as_deref()))));
    }
    print_table(&tensors, summary.tensor_count, out)?;

    let mut storages = columns(["storage", "kind", "bytes", "file", "offset", "tensors"]);
    for storage in source.storages().take(MAX_ROWS) {
        let storage = StorageRecord::new(storage?, source);
        storages.add_row([
            storage.id,
            storage.kind.to_owned(),
            storage.size_bytes.to_string(),
            one_line(&storage.file),
            storage.offset_bytes.to_string(),
            storage.tensor_count.to_string(),
        ]);
    }
    print_table(&storages, summary.storage_count, out)?;

    let mut last = None;
    for ((scope, key), value) in source.attributes().iter() {
        if last != Some(scope) {
            let of = if scope.is_empty() { String::new() } else { format!(" of {}", quoted(scope)) };
            writeln!(out, "\nattributes{of}")?;
        }
        writeln!(out, "  {} = {}", one_line(key), one_line(value))?;
        last = Some(scope);
    }
    Ok(())
}

/// Formats dimension names as Python prints a list.
pub(crate) fn format_dim_names(names: Option<&[Option<String>]>) -> String {
    let names: Vec<&str> =
        names.unwrap_or_default().iter().map(|name| name.as_deref().unwrap_or("None")).collect();
    if names.is_empty() { String::new() } else { format!("[{}]", names.join(", ")) }
}

pub(crate) fn columns<'a>(names: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(names);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Prints a table, or nothing if it has no rows. `count` is the total number of rows, including those left out.
pub(crate) fn print_table(table: &Table, count: u64, out: &mut impl Write) -> Result<()> {
    if !table.is_empty() {
        writeln!(out, "\n{}", table.trim_fmt())?;
    }
    match count.saturating_sub(table.row_count() as u64) {
        0 => Ok(()),
        left_out => Ok(writeln!(out, "... and {left_out} more; --json has all of them")?),
    }
}
