//! `export`: writes tensors of stores and files to a file in another format, or copies a store.

mod sources;
mod store_copy;
mod words;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use indicatif::HumanBytes;
use serde_json::json;
use stridemap::{ErrorKind, Tensor};
use stridemap_interop::npz::Packing;
use stridemap_interop::{gguf, npy, npz, safetensors};

use super::stdin::PIPE;
use crate::args::{Existing, External, Reading};
use crate::error::{Error, Result, output_error};
use crate::history::split;
use crate::in_place::Outputs;
use crate::names::{names, one_line, quoted};
use crate::output_file::{check_parent_dir, check_replaceable};
use crate::remote::shown;
use crate::ui::{advance, counted, examples, loaded_record, message, write_json};
use sources::Sources;
use store_copy::copy;
use words::Words;

pub(crate) use words::is_output;

/// Write tensors of stores and files to a file, or copy a store that is in use
///
/// OUT is the last word that ends with .safetensors, .gguf, .npy, .npz or .smap; what comes before it is read, and what
/// comes after it are names. Several sources are merged. Two must not have the same name. Compressed and byte-swapped arrays
/// are first unpacked into temporary files, in the directory that TMPDIR names.
///
/// Elements of a store are written to other formats without being verified; run verify first to find damage. Those of .npz
/// and .pt files are compared with their checksums.
///
/// A copy of a store contains exactly one generation, whereas cp -r can mix files of several. With --tags, it contains
/// the newest generation and all tagged ones. The copy has its own uuid, and shares blocks with the store where the file
/// system supports it. It is verified while it is made; damage is an error. COPY.smap must not exist. A killed export
/// leaves a .stage-* directory beside the path of the copy; that directory can be deleted.
#[derive(clap::Args)]
#[command(after_help = examples(&["export model.smap weight.npy encoder.weight", "export model.pt model.safetensors", "export a.safetensors b.safetensors merged.safetensors", "export model.smap copy.smap --tags"]))]
#[command(override_usage = "stridemap export [OPTIONS] <FROM>... <OUT> [NAME]...")]
pub(crate) struct ExportArgs {
    /// The store, its URL, a tagged generation (STORE@TAG, URL@TAG), or a file in another format; several are merged
    #[arg(value_name = "FROM")]
    source: PathBuf,
    /// The file to write, whose extension selects the format: .safetensors, .gguf, .npy, .npz, or .smap for a copy of the
    /// store; - is standard output. Then the tensors to write, by name, by glob ('*.weight') or by prefix ('encoder.'); all
    /// if none is named
    #[arg(required = true, value_name = "OUT NAME")]
    words: Vec<OsString>,
    #[command(flatten)]
    options: ExportOptions,
}

#[derive(clap::Args)]
struct ExportOptions {
    /// Write the tensors whose names begin with P, with P removed from their names, and the attributes of P
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Leave out what cannot be read in a file, and print the names; without this, such a file is refused
    #[arg(long)]
    skip_unreadable: bool,
    #[command(flatten)]
    reading: Reading,
    /// Copy all tags, too, and what they keep, to a copy of the store
    #[arg(long)]
    tags: bool,
    /// The format on standard output, safetensors by default; npy holds one tensor
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// The order of elements in .npy and .npz
    #[arg(long, value_enum, default_value_t = Order::C)]
    order: Order,
    /// Compress the arrays of an .npz file
    #[arg(long)]
    compress: bool,
    /// Split a .safetensors model into files of at most SIZE bytes of elements, with an index: 5GB, 500MB, 1GiB
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_size)]
    max_shard_size: Option<u64>,
    /// Print one JSON object, if the output is a file
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    existing: Existing,
    #[command(flatten)]
    external: External,
}

impl ExportArgs {
    /// Whether standard output is the file to write.
    pub(crate) fn is_piped(&self) -> bool {
        Words::of(&self.words).out == PIPE
    }
}

/// The arguments, with what the words stand for.
struct Export<'a> {
    options: &'a ExportOptions,
    sources: Vec<&'a Path>,
    out: &'a Path,
    names: Vec<String>,
}

impl<'a> Export<'a> {
    fn of(args: &'a ExportArgs) -> Result<Self> {
        let Words { sources, out, names } = Words::of(&args.words);
        let name = |name: &OsString| {
            let why = || Error::Refused(format!("export: the name {name:?} is not UTF-8"));
            name.to_str().map(str::to_owned).ok_or_else(why)
        };
        let names: Vec<String> = names.iter().map(name).collect::<Result<_>>()?;
        if !names.is_empty() && !args.options.prefix.is_empty() {
            return Err(Error::Refused(
                "export: --prefix cannot be used with names; leave out one of both".to_owned(),
            ));
        }
        let sources = [args.source.as_path()].into_iter().chain(sources.iter().map(Path::new)).collect();
        Ok(Export { options: &args.options, sources, out: Path::new(out), names })
    }

    fn is_piped(&self) -> bool {
        self.out.as_os_str() == PIPE
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Row-major
    #[value(name = "C", alias = "c")]
    C,
    /// Column-major
    #[value(name = "F", alias = "f")]
    F,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Npy,
    Safetensors,
    Gguf,
    #[value(skip)]
    Npz,
    #[value(skip)]
    Store,
}

impl Format {
    /// Returns the format that the options select.
    fn of(args: &Export<'_>) -> Result<Self> {
        let out = args.out;
        if args.is_piped() {
            // npz and stores cannot be piped.
            return Ok(args.options.format.unwrap_or(Format::Safetensors));
        }
        let argument_hint = if args.names.is_empty() { "" } else { "; OUT comes before the names" };
        match out.extension().and_then(OsStr::to_str) {
            Some("smap") => Ok(Format::Store),
            Some("safetensors") => Ok(Format::Safetensors),
            Some("gguf") => Ok(Format::Gguf),
            Some("npy") => Ok(Format::Npy),
            Some("npz") => Ok(Format::Npz),
            _ => {
                let why = "the extension selects the format and must be .safetensors, .gguf, .npy, .npz, or .smap \
                           for a copy of the store";
                Err(Error::at("export", out, format_args!("{why}{argument_hint}")))
            }
        }
    }
}

pub(crate) fn run(args: &ExportArgs, out: &mut impl Write) -> Result<()> {
    let args = &Export::of(args)?;
    check_pipe(args)?;
    let format = Format::of(args)?;
    check_tags(args, format)?;
    if !args.is_piped() {
        check_parent_dir("export", args.out)?;
    }
    let sources = Sources::open(args)?;
    sources.check_readable(args)?;
    let names = names(&args.names, &sources)?;
    check_flags(args, format)?;
    if matches!(format, Format::Store) {
        return copy(args, &names, sources.only_store(args.out)?, out);
    }
    let tensors = sources.load(&args.options.prefix, &names)?;
    let attributes = sources.attributes(&args.options.prefix);
    check_contents(args, format, &tensors, !attributes.is_empty())?;
    let size_bytes = tensors.iter().map(|(_, tensor)| tensor.nbytes() as u64).fold(0, u64::saturating_add);
    let files = files(args, format, &tensors)?;
    let is_replacing = check_files(args, &files, &tensors, &sources)?;
    let contents = format!("{}, {}", counted(tensors.len() as u64, "tensor"), HumanBytes(size_bytes));
    let record = || {
        let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
        let record = |(name, tensor): &(String, Tensor)| {
            loaded_record(name, tensor.dtype(), tensor.size(), tensor.nbytes())
        };
        let tensors: Vec<_> = tensors.iter().map(record).collect();
        json!({ "is_dry_run": args.options.existing.is_dry_run(), "files": files, "tensor_count": tensors.len(),
            "nbytes": size_bytes, "tensors": tensors })
    };
    if args.options.existing.is_dry_run() {
        if args.options.json {
            return write_json(out, record());
        }
        let replacing = if is_replacing { ", replacing it" } else { "" };
        let shards = if files.len() > 1 { " and its shards" } else { "" };
        let file = one_line(&files.last().map_or(args.out, PathBuf::as_path).to_string_lossy());
        writeln!(out, "would write {file}{shards}{replacing}: {contents}")?;
        for (name, tensor) in &tensors {
            writeln!(out, "  {}, {} {:?}", quoted(name), tensor.dtype(), tensor.size())?;
        }
        return Ok(());
    }
    sources.verify_members(&args.options.prefix, &names)?;
    let types = sources.gguf_types(&args.options.prefix, &tensors);
    if let (Some((name, of)), false) = (types.first_key_value(), matches!(format, Format::Gguf)) {
        let (count, name) = (counted(types.len() as u64, "tensor"), quoted(name));
        message(&format!("note: only a .gguf file says what the bytes of {count} are, such as {name}, {of}"));
    }
    let progress = advance("export", size_bytes);
    let texts = Texts { attributes: &attributes, types: &types };
    let written = write(args, format, &tensors, texts, out, progress);
    let (shard_count, changed_names) = written.map_err(|e| match e.kind() {
        _ if args.is_piped() => output_error(e),
        ErrorKind::AlreadyExists if !args.options.existing.force => {
            Error::Refused(format!("{e}; --force replaces it"))
        }
        _ => e.into(),
    })?;
    for (name, array) in changed_names {
        let (name, array) = (quoted(&name), quoted(&array));
        message(&format!(
            "note: {name} is named {array} in the file: as a path, its name could lead anywhere"
        ));
    }
    sources.note_shared_bytes(&args.options.prefix, &names)?;
    let path = if args.is_piped() { "standard output".into() } else { args.out.to_string_lossy() };
    let shards =
        if shard_count > 1 { format!(", in {shard_count} shards and an index") } else { String::new() };
    message(&format!("exported {contents}, to {path}{shards}"));
    if args.options.json {
        write_json(out, record())?;
    }
    note_other_model(args, format, shard_count > 1);
    Ok(())
}

/// Says that a single file and a model in shards exist at once: some programs load one, and some the other.
fn note_other_model(args: &Export<'_>, format: Format, is_sharded: bool) {
    let mut other = args.out.to_path_buf();
    if !is_sharded {
        other.as_mut_os_string().push(".index.json");
    }
    if matches!(format, Format::Safetensors) && !args.is_piped() && other.exists() {
        let other = other.display();
        message(&format!("note: {other} also exists; delete it, or programs may load it instead"));
    }
}

/// Refuses tensors that the file cannot hold, and a prefix that selects nothing.
fn check_contents(
    args: &Export<'_>,
    format: Format,
    tensors: &[(String, Tensor)],
    has_attributes: bool,
) -> Result<()> {
    let refused = |why| Err(Error::at("export", args.out, why));
    let is_npy = matches!(format, Format::Npy);
    let writes_attributes = matches!(format, Format::Safetensors | Format::Gguf) && has_attributes;
    if tensors.iter().any(|(name, _)| name.is_empty()) && !is_npy {
        let prefix = &args.options.prefix;
        return match prefix.as_str() {
            "" => refused(
                "a tensor has no name; import the file with --rename =NEW, and export the store".to_owned(),
            ),
            _ => refused(format!(
                "the tensor {prefix:?} has no name without the prefix; use a longer name or a shorter prefix"
            )),
        };
    }
    if tensors.is_empty() && !writes_attributes && !args.options.prefix.is_empty() {
        let why = format!("no name begins with {:?}; ls lists the names", args.options.prefix);
        return Err(Error::NoMatch(format!("export {}: {why}", args.out.display())));
    }
    if is_npy && tensors.len() != 1 {
        let what = format!("a .npy file holds one tensor, not {}", tensors.len());
        return refused(format!("{what}; name the one to export, or write an .npz file"));
    }
    Ok(())
}

/// Returns the options for a safetensors file.
fn model<'a>(args: &Export<'_>, attributes: &'a BTreeMap<String, String>) -> safetensors::Export<'a> {
    let export = safetensors::Export::new().metadata(attributes).on_existing(args.options.existing.policy());
    match args.options.max_shard_size {
        Some(max_shard_bytes) => export.max_shard_bytes(max_shard_bytes),
        None => export,
    }
}

/// Returns the paths of the files to write. The last one is that by which the tensors are opened: the index, if they
/// are split into shards.
fn files(args: &Export<'_>, format: Format, tensors: &[(String, Tensor)]) -> Result<Vec<PathBuf>> {
    match format {
        _ if args.is_piped() => Ok(Vec::new()),
        Format::Safetensors => Ok(model(args, &BTreeMap::new()).paths(args.out, tensors)?),
        _ => Ok(vec![args.out.to_path_buf()]),
    }
}

/// Refuses to replace a file unless `--force` is given, and always one that a store uses in place. Returns whether a
/// file is replaced.
fn check_files(
    args: &Export<'_>,
    files: &[PathBuf],
    tensors: &[(String, Tensor)],
    sources: &Sources,
) -> Result<bool> {
    let mut is_replacing = false;
    // The index is named first.
    for file in files.last().into_iter().chain(files) {
        is_replacing |= check_replaceable("export", file, args.options.existing.force)?;
    }
    let names = tensors.iter().map(|(name, _)| name.as_str()).collect();
    let outputs = Outputs { command: "export", paths: files, names };
    sources.iter().try_for_each(|input| outputs.check(input))?;
    Ok(is_replacing)
}

/// What is written beside the tensors, if the format has it.
#[derive(Clone, Copy)]
struct Texts<'a> {
    attributes: &'a BTreeMap<String, String>,
    /// The types of tensors that no dtype has, by name in the file.
    types: &'a BTreeMap<String, String>,
}

/// Writes the tensors. Returns the number of files with elements, and the names that had to be changed.
fn write(
    args: &Export<'_>,
    format: Format,
    tensors: &[(String, Tensor)],
    texts: Texts<'_>,
    out: &mut impl Write,
    progress: impl FnMut(u64),
) -> stridemap::Result<(usize, Vec<(String, String)>)> {
    let (path, existing) = (args.out, args.options.existing.policy());
    let order = match args.options.order {
        Order::C => stridemap_interop::Order::C,
        Order::F => stridemap_interop::Order::F,
    };
    match (format, tensors) {
        (Format::Safetensors, _) => {
            let export = model(args, texts.attributes);
            if args.is_piped() {
                export.write_to(out, tensors, progress)?;
            } else {
                // Several files are shards and an index.
                return Ok((export.write(path, tensors, progress)?.len().max(2) - 1, Vec::new()));
            }
        }
        (Format::Gguf, _) => {
            let export = gguf::Export::new().metadata(texts.attributes).types(texts.types);
            let export = export.on_existing(existing);
            if args.is_piped() {
                export.write_to(out, tensors, progress)?;
            } else {
                export.write(path, tensors, progress)?;
            }
        }
        (Format::Npy, [(_, tensor)]) => {
            let export = npy::Export::new().order(order).on_existing(existing);
            if args.is_piped() {
                export.write_to(out, tensor, progress)?;
            } else {
                export.write(path, tensor, progress)?;
            }
        }
        (Format::Npz, _) => {
            let packing = if args.options.compress { Packing::Deflated } else { Packing::Stored };
            let export = npz::Export::new().order(order).packing(packing);
            return Ok((1, export.on_existing(existing).write(path, tensors, progress)?));
        }
        (Format::Npy | Format::Store, _) => unreachable!("refused by check_contents, or written by copy"),
    }
    Ok((1, Vec::new()))
}

/// Refuses `--tags` for anything but a copy of a whole store.
fn check_tags(args: &Export<'_>, format: Format) -> Result<()> {
    let refused = |why: &str| Err(Error::at("export", args.out, why));
    let store = args.sources.first().copied().unwrap_or(Path::new(""));
    match split(store) {
        _ if !args.options.tags => Ok(()),
        _ if !matches!(format, Format::Store) => {
            refused("--tags is for a copy of the store; name it COPY.smap")
        }
        _ if !args.names.is_empty() => {
            refused("--tags copies whole generations; leave out the names, or leave out --tags")
        }
        Some((store, tag)) => refused(&format!(
            "--tags copies all tagged generations and the newest one; name the store, {}, without @{tag}",
            shown(store)
        )),
        None => Ok(()),
    }
}

/// Refuses to write a file to a terminal, and flags that do not apply to standard output, or to a file.
fn check_pipe(args: &Export<'_>) -> Result<()> {
    let refused = |why| Err(Error::at("export", args.out, why));
    if !args.is_piped() {
        return match args.options.format {
            Some(_) => refused("--format is for standard output; the extension of a file selects its format"),
            None => Ok(()),
        };
    }
    if args.options.json {
        return refused("--json is for files; standard output gets the tensors");
    }
    if args.options.max_shard_size.is_some() {
        return refused("--max-shard-size is for files; standard output is always one file");
    }
    if io::stdout().is_terminal() && !args.options.existing.is_dry_run() {
        return refused("standard output is a terminal; redirect it to a file or a pipe");
    }
    Ok(())
}

/// Refuses flags that do not apply to the format: the user probably meant a different format.
fn check_flags(args: &Export<'_>, format: Format) -> Result<()> {
    let refused = |why| Err(Error::at("export", args.out, why));
    match format {
        Format::Safetensors | Format::Gguf | Format::Store if args.options.order != Order::C => {
            refused("--order is for .npy and .npz files; others are always row-major")
        }
        Format::Gguf | Format::Npy | Format::Npz | Format::Store if args.options.max_shard_size.is_some() => {
            refused("--max-shard-size is for .safetensors files; others are always one file")
        }
        Format::Store if !args.options.prefix.is_empty() => {
            refused("--prefix is for files in other formats; a copy of a store keeps its names")
        }
        Format::Safetensors | Format::Gguf | Format::Npy | Format::Store if args.options.compress => {
            refused("--compress is for .npz files; others are never compressed")
        }
        _ => Ok(()),
    }
}
