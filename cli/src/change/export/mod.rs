//! `export`: writes tensors of stores and files to a file in another format, or copies a store.

mod checks;
mod conversion;
mod format;
mod sources;
mod store_copy;
mod words;
mod write;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use serde_json::json;
use stridemap::{DType, ErrorKind, Tensor};

use super::stdin::PIPE;
use crate::args::{Existing, External, Reading, parse_dtype};
use crate::error::{Error, Result, output_error};
use crate::names::{names, one_line, quoted};
use crate::output_file::check_parent_dir;
use crate::ui::{advance, counted, examples, loaded_record, message, write_json};
use checks::{check_contents, check_files, check_flags, check_pipe, check_tags};
use conversion::Conversion;
use format::{Format, Order};
use sources::{LIBRARY_KEY, Sources};
use store_copy::copy;
use words::Words;
use write::{Texts, check_gguf, files, write};

pub(crate) use words::is_output;

/// Write tensors of stores and files to a file: convert, merge, split; or copy a store
///
/// OUT is the last word that ends with .safetensors, .gguf, .npy, .npz or .smap; what comes before it is read, and what
/// comes after it are names. Several sources are merged. Two must not have the same name. Compressed and byte-swapped
/// arrays, and those that --to converts, are first written to temporary files, in the directory that TMPDIR names.
///
/// Elements of a store are written to other formats without being verified; run verify first to find damage. Those of .npz
/// and .pt files are compared with their checksums.
///
/// A copy of a store contains exactly one generation, whereas cp -r can mix files of several. With --tags, it contains
/// the newest generation and all tagged ones. The copy has its own uuid, and shares blocks with the store where the file
/// system supports it. It is verified while it is made; damage is an error. COPY.smap must not exist. A killed export
/// leaves a .stage-* directory beside the path of the copy; that directory can be deleted.
#[derive(clap::Args)]
#[command(after_help = examples(&["export model.smap weight.npy encoder.weight", "export model.pt model.safetensors", "export model.pt encoder.safetensors 'encoder.*'", "export a.safetensors b.safetensors merged.safetensors", "export model.pt half.safetensors --to float16", "export model.smap copy.smap --tags"]))]
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
    /// Convert the tensors to this dtype: float16, bfloat16, ...; those that convert would convert
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    to: Option<DType>,
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
    let mut tensors = sources.load(&args.options.prefix, &names)?;
    let types = sources.gguf_types(&args.options.prefix, &tensors);
    let conversion = Conversion::plan(args, &mut tensors, &types, &sources)?;
    let mut attributes = sources.attributes(&args.options.prefix);
    check_contents(args, format, &tensors, !attributes.is_empty())?;
    if let (Format::Safetensors, Some(library)) = (format, sources.library()) {
        attributes.entry(LIBRARY_KEY.to_owned()).or_insert(library);
    }
    let size_bytes = tensors.iter().map(|(_, tensor)| tensor.nbytes() as u64).fold(0, u64::saturating_add);
    let files = files(args, format, &tensors)?;
    let is_replacing = check_files(args, &files, &tensors, &sources)?;
    let contents = format!("{}, {}", counted(tensors.len() as u64, "tensor"), HumanBytes(size_bytes));
    let record = |tensors: &[(String, Tensor)]| {
        let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
        let record = |(name, tensor): &(String, Tensor)| {
            loaded_record(name, tensor.dtype(), tensor.size(), tensor.nbytes())
        };
        let tensors: Vec<_> = tensors.iter().map(record).collect();
        json!({ "is_dry_run": args.options.existing.is_dry_run(), "files": files, "tensor_count": tensors.len(),
            "nbytes": size_bytes, "tensors": tensors })
    };
    let texts = Texts { attributes: &attributes, types: &types };
    if matches!(format, Format::Gguf) {
        check_gguf(args, &tensors, texts)?;
    }
    if args.options.existing.is_dry_run() {
        if args.options.json {
            return write_json(out, record(&tensors));
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
    conversion.apply(&mut tensors)?;
    if let (Some((name, of)), false) = (types.first_key_value(), matches!(format, Format::Gguf)) {
        let (count, name) = (counted(types.len() as u64, "tensor"), quoted(name));
        message(&format!("note: only a .gguf file says what the bytes of {count} are, such as {name}, {of}"));
    }
    let progress = advance("export", size_bytes);
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
    sources.note_shared_bytes(&args.options.prefix, &names, &tensors)?;
    let path = if args.is_piped() { "standard output".into() } else { args.out.to_string_lossy() };
    let shards =
        if shard_count > 1 { format!(", in {shard_count} shards and an index") } else { String::new() };
    message(&format!("exported {contents}, to {path}{shards}"));
    if args.options.json {
        write_json(out, record(&tensors))?;
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
