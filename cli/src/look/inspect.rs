//! `inspect`: describes a store or a file in another format.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use serde::Serialize;
use stridemap::{StorageInfo, StoreOptions, TensorInfo};

use crate::args::Reading;
use crate::error::Result;
use crate::input::Input;
use crate::names::{one_line, quoted};
use crate::ui::{Column, List, MAX_ROWS, Table, TensorRecord, storage_id, write_json};

/// Describe a store or a file: summary, tensors, storages and attributes
///
/// .safetensors, .npy, .npz and .pt files are read in place; tensors have the names that an import would use. In
/// JSON, a file has no uuid and no generation, and only the attributes of tensors and prefixes are shown.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  stridemap inspect model.smap --json | jq .store\n  stridemap inspect model.safetensors"
)]
pub(crate) struct InspectArgs {
    /// The store, or a file in another format, detected from its content
    #[arg(value_name = "STORE|FILE")]
    pub(crate) source: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

pub(crate) fn run(args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    let source = Input::open(&args.source, &args.reading, &StoreOptions::new())?;
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
    fn of(source: &Input) -> Result<Self> {
        let (uuid, generation) = match source {
            Input::Store(store, snapshot) => (Some(store.uuid()), Some(snapshot.generation())),
            Input::File(..) => (None, None),
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
    fn new(info: StorageInfo, source: &Input) -> Self {
        let file = match source {
            Input::Store(store, _) => info.file.strip_prefix(store.path()).unwrap_or(&info.file),
            Input::File(..) => &info.file,
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

fn print(summary: &Summary, source: &Input, out: &mut impl Write) -> Result<()> {
    writeln!(out, "path        {}", one_line(&summary.path))?;
    match source {
        Input::Store(store, snapshot) => {
            writeln!(out, "uuid        {}", store.uuid())?;
            writeln!(out, "generation  {}", snapshot.generation())?;
        }
        Input::File(file, _) => writeln!(out, "format      {}", file.format())?,
    }
    writeln!(out, "tensors     {}, {}", summary.tensor_count, HumanBytes(summary.logical_size_bytes))?;
    writeln!(out, "storages    {}, {}", summary.storage_count, HumanBytes(summary.stored_size_bytes))?;

    let infos = source.tensors("")?.take(MAX_ROWS).collect::<stridemap::Result<Vec<TensorInfo>>>()?;
    let is_named = infos.iter().any(|tensor| tensor.dim_names.is_some());
    let mut tensors = Table::new(if is_named { &TENSORS } else { &TENSORS[..6] });
    for tensor in &infos {
        let row = [
            quoted(&tensor.name).into_owned(),
            tensor.dtype.to_string(),
            format!("{:?}", tensor.size()),
            format!("{:?}", tensor.stride()),
            tensor.storage_offset().to_string(),
            storage_id(tensor.storage_id),
        ];
        tensors.row(row.into_iter().chain(is_named.then(|| format_dim_names(tensor.dim_names.as_deref()))));
    }
    tensors.print(summary.tensor_count, out)?;

    let mut storages = Table::new(&STORAGES);
    for storage in source.storages().take(MAX_ROWS) {
        let storage = StorageRecord::new(storage?, source);
        storages.row([
            storage.id,
            storage.kind.to_owned(),
            storage.size_bytes.to_string(),
            one_line(&storage.file),
            storage.offset_bytes.to_string(),
            storage.tensor_count.to_string(),
        ]);
    }
    storages.print(summary.storage_count, out)?;

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

const TENSORS: [Column; 7] = [
    Column::new("name").long(),
    Column::new("dtype"),
    Column::new("size").long(),
    Column::new("stride").long().drop(2),
    Column::new("offset").right().drop(1),
    Column::new("storage").drop(0),
    Column::new("dim names").long().drop(3),
];

const STORAGES: [Column; 6] = [
    Column::new("storage"),
    Column::new("kind"),
    Column::new("bytes").right(),
    Column::new("file").long().drop(1),
    Column::new("offset").right().drop(0),
    Column::new("tensors").right().drop(2),
];

/// Formats dimension names as Python prints a list.
pub(crate) fn format_dim_names(names: Option<&[Option<String>]>) -> String {
    let names: Vec<&str> =
        names.unwrap_or_default().iter().map(|name| name.as_deref().unwrap_or("None")).collect();
    if names.is_empty() { String::new() } else { format!("[{}]", names.join(", ")) }
}
