//! The commands and options of the command line, as clap parses them.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use stridemap::{DType, ExternalFiles, OnExisting, StoreOptions};
use stridemap_interop::ForeignOptions;
use stridemap_interop::npz::Packing;

use crate::expr;

fn expr_help(example: &str) -> String {
    format!(
        "\
EXPR is a NAME, then any of
  [0:10, ::-2, -1, ..., None]
{}
An axis is a number or a name. An operation that returns a list needs an index: .chunk(3)[-1]
In EXPR, quote a name that contains \"[\" or \".word(\" (ls prints it quoted): 'odd [name]'.
A plain NAME argument is never parsed, so do not quote it.

Example:
  stridemap {example}",
        expr::help()
    )
}

/// Store tensors and views of them in a memory-mapped store on disk.
#[derive(Parser)]
#[command(name = "stridemap", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Copy the tensors of .safetensors, .npy, .npz and .pt files into a store, in one commit
    ///
    /// To import a model in several .safetensors files, name its index, model.safetensors.index.json. The metadata of a
    /// .safetensors file and the plain values of a .pt file become attributes of the store. An import that fails or is
    /// killed changes no tensor, but can leave a new, empty store. The next commit, or gc, deletes its unfinished files.
    #[command(after_help = "Example:\n  stridemap import model.safetensors bias.npy model.smap")]
    Import(ImportArgs),
    /// Write tensors to a .safetensors, .npy or .npz file, or copy a store that is in use to a new .smap
    ///
    /// A copy of a store contains exactly one generation, whereas cp -r can mix files of several. The copy has its own
    /// uuid, and shares blocks with the store where the file system supports it. Elements are verified while they are
    /// copied; damage is an error. COPY.smap must not exist. A copy that is killed leaves a .stage-* directory beside
    /// it, which can be deleted.
    #[command(
        after_help = "Example:\n  stridemap export model.smap weight.npy encoder.weight\n  stridemap export model.smap copy.smap"
    )]
    Export(ExportArgs),
    /// Describe a store or a file: summary, tensors, storages and attributes
    ///
    /// .safetensors, .npy, .npz and .pt files are read in place; tensors have the names that an import would use. In
    /// JSON, a file has no uuid and no generation, and only the attributes of tensors and prefixes are shown.
    #[command(
        after_help = "Example:\n  stridemap inspect model.smap --json | jq .store\n  stridemap inspect model.safetensors"
    )]
    Inspect(InspectArgs),
    /// List the tensors of a store or a file, sorted by name: name, dtype and size
    #[command(after_help = "Example:\n  stridemap ls model.smap encoder.\n  stridemap ls model.pt")]
    Ls(LsArgs),
    /// Print the elements of a tensor or view
    #[command(after_help = expr_help("show model.smap 'encoder.weight[0, ::2]'"))]
    Show(ShowArgs),
    /// Compare the tensors of two stores or files, by name
    ///
    /// Two tensors are equal if their dtypes, sizes and values are equal. Values are compared exactly, unless --rtol
    /// or --atol allows a difference: |a - b| <= atol + rtol * |b|, as in numpy.allclose. NaN equals only NaN, and
    /// -0.0 equals 0.0. Strides, offsets, shared storages, dimension names and attributes are compared only with
    /// --strict; without it, differing attributes are listed but do not count as a difference. If each file holds one
    /// unnamed tensor, the two are compared.
    ///
    /// Each line shows a tensor that is only in A (-), only in B (+) or different (~), or an attribute that differs
    /// (@). The last line is a summary. Exit code: 0 if there is no difference, 1 if there is one, 2 after an error.
    /// If a tensor cannot be read, the others are still compared.
    #[command(
        after_help = "Example:\n  stridemap diff model.safetensors model.smap\n  stridemap diff before.pt after.pt --rtol 1e-5 --json | jq .equal"
    )]
    Diff(DiffArgs),
    /// Save a view of a tensor under a new name, without copying elements
    #[command(after_help = expr_help("view model.smap weight_t 'weight.t()'"))]
    View(ViewArgs),
    /// Rename a tensor; replaces NEW if it exists
    #[command(after_help = "Example:\n  stridemap mv model.smap weight encoder.weight")]
    Mv(MvArgs),
    /// Remove tensors in one commit: all or none
    #[command(after_help = "Example:\n  stridemap rm model.smap encoder.weight encoder.bias")]
    Rm(RmArgs),
    /// Save a tensor under a second name, without copying elements; replaces NEW if it exists
    #[command(after_help = "Example:\n  stridemap cp model.smap encoder.weight decoder.weight")]
    Cp(CpArgs),
    /// Append rows from files to a tensor, in one commit: all or none
    ///
    /// Only the new rows are written. The tensor must be contiguous and last in its storage, which is usually the case
    /// for a tensor that was imported by itself. Processes that have already loaded the tensor keep seeing its old
    /// size.
    #[command(after_help = "Example:\n  stridemap append model.smap log monday.npy tuesday.npy")]
    Append(AppendArgs),
    /// Delete files that are no longer needed
    #[command(after_help = "Example:\n  stridemap gc model.smap")]
    Gc(StoreArgs),
    /// Rewrite storages to free bytes that no tensor refers to
    ///
    /// A storage is rewritten if that frees at least a quarter of it, and at least 4 KiB. Compaction first deletes
    /// files that are no longer needed, as gc does. Tensors keep their names, sizes and elements. Old files that
    /// readers still use are deleted by the first commit or gc after the readers have finished. A storage that another
    /// process is changing is skipped. A damaged storage is skipped too, and the exit code is then 1.
    ///
    /// With --materialize, elements in files that were imported in place are first copied into the store, which then no
    /// longer needs the files.
    #[command(after_help = "Example:\n  stridemap compact model.smap")]
    Compact(CompactArgs),
    /// Show disk usage: bytes that no tensor refers to, and why they are kept
    #[command(after_help = "Example:\n  stridemap stats model.smap --json | jq .reclaimable_bytes")]
    Stats(StatsArgs),
    /// Verify a store, or some tensors, and report damage; exit with 1 if any is found
    ///
    /// Each line shows the file, the offset, the damage, the broken rule of the format, and the affected tensors. If
    /// tensors are named, only the 1 MiB chunks that contain their elements are read. Files that are no longer needed
    /// are listed, but are not damage. A file that was imported in place is not read; verify checks that it has not
    /// changed since then. Mutable and live storages have no digests, so their elements are not checked.
    #[command(
        after_help = "Example:\n  stridemap verify model.smap && echo whole\n  stridemap verify model.smap --json | jq .findings[].affects"
    )]
    Verify(VerifyArgs),
    /// Make a damaged store usable again; without --apply, only list the repairs, and exit with 1 if there are any
    ///
    /// Nothing is guessed: data that no checksum confirms is lost, and reported. FORMAT, LOCK and files of digests are
    /// rewritten if necessary. If the newest generation cannot be read, the store goes back to the newest generation
    /// that can. Tensors with damaged bytes are lost; others in the same storage are copied to a new one. Removed and
    /// replaced files are moved to the lost+found directory of the store, and kept there. A repair is refused while a
    /// reader needs a file that would be moved. An interrupted repair can be run again.
    #[command(after_help = "Example:\n  stridemap repair model.smap\n  stridemap repair model.smap --apply")]
    Repair(RepairArgs),
    /// Print a line for each commit by any process, until interrupted
    ///
    /// Each line shows the generation, and the names that were added (+), changed (~) or removed (-). Commits that
    /// arrive faster than they can be printed are combined: "7 since 4" shows the changes in generations 5 to 7.
    /// Changes in place are not commits, and are not shown.
    #[command(after_help = "Example:\n  stridemap watch model.smap --json | jq -c .added")]
    Watch(WatchArgs),
}

#[derive(clap::Args)]
#[command(override_usage = "stridemap import [OPTIONS] <FILE>... <STORE>")]
pub(crate) struct ImportArgs {
    /// Files to import, then the store, which is created if it does not exist. The format is detected from the content;
    /// an unnamed tensor, as in .npy, is named after its file
    #[arg(required = true, value_name = "FILE... STORE")]
    pub(crate) paths: Vec<PathBuf>,
    /// Save only headers, and leave the elements in the files, which must not change afterwards
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) external: External,
    /// Prefix every name with P; the attributes of the files become those of P
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// For each file, report whether it was copied or shares disk blocks with the store
    #[arg(long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

/// Options for reading files in other formats.
#[derive(clap::Args)]
pub(crate) struct Reading {
    /// Convert big-endian NumPy arrays to little-endian; without this they are refused
    #[arg(long)]
    byteswap: bool,
    /// The dtype of elements that NumPy stores as untyped bytes (V1, V2): float8_e4m3fn, bfloat16, ...
    #[arg(long, value_name = "DTYPE")]
    untyped: Option<DType>,
}

impl Reading {
    pub(crate) fn options(&self) -> ForeignOptions {
        let options = ForeignOptions::new().byteswap(self.byteswap);
        match self.untyped {
            Some(dtype) => options.untyped(dtype),
            None => options,
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The file to write; its extension selects the format: .safetensors, .npy, .npz, or .smap for a copy of the store
    pub(crate) out: PathBuf,
    /// The tensors to write; all if none is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Write the tensors whose names begin with P, without P, and the attributes of P
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true, conflicts_with = "names")]
    pub(crate) prefix: String,
    /// The order of elements in .npy and .npz
    #[arg(long, value_enum, default_value_t = Order::C)]
    pub(crate) order: Order,
    /// Compress the arrays of an .npz file
    #[arg(long)]
    compress: bool,
    /// Split a .safetensors model into files of at most SIZE bytes of elements, with an index: 5GB, 500MB, 1GiB
    #[arg(long, value_name = "SIZE", value_parser = crate::shard_size::parse)]
    pub(crate) max_shard_size: Option<u64>,
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) external: External,
}

impl ExportArgs {
    pub(crate) fn packing(&self) -> Packing {
        if self.compress { Packing::Deflated } else { Packing::Stored }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Row-major
    #[value(name = "C", alias = "c")]
    C,
    /// Column-major
    #[value(name = "F", alias = "f")]
    F,
}

impl From<Order> for stridemap_interop::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::C => stridemap_interop::Order::C,
            Order::F => stridemap_interop::Order::F,
        }
    }
}

#[derive(clap::Args)]
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

#[derive(clap::Args)]
pub(crate) struct StatsArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args)]
pub(crate) struct LsArgs {
    /// The store, or a file in another format, detected from its content
    #[arg(value_name = "STORE|FILE")]
    pub(crate) source: PathBuf,
    /// Only names with this prefix
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print one JSON object per tensor
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// The store, or a file in another format, detected from its content
    #[arg(value_name = "STORE|FILE")]
    pub(crate) source: PathBuf,
    /// The tensor or view
    pub(crate) expr: String,
    /// Print one JSON object with all elements in row-major order
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// The first store or file
    pub(crate) a: PathBuf,
    /// The second store or file
    pub(crate) b: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Compare only names, dtypes and sizes; read no elements
    #[arg(long, conflicts_with_all = ["rtol", "atol"])]
    pub(crate) no_values: bool,
    /// Also compare strides, offsets, shared storages, dimension names and attributes
    #[arg(long)]
    pub(crate) strict: bool,
    /// Largest difference, relative to the value in B
    #[arg(long, value_name = "R", default_value = "0", hide_default_value = true, value_parser = tolerance)]
    pub(crate) rtol: f64,
    /// Largest absolute difference
    #[arg(long, value_name = "T", default_value = "0", hide_default_value = true, value_parser = tolerance)]
    pub(crate) atol: f64,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) external: External,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0. ..f64::INFINITY).contains(&x) => Ok(x),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

#[derive(clap::Args)]
pub(crate) struct ViewArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The new name
    pub(crate) new: String,
    /// The view to save
    pub(crate) expr: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(clap::Args)]
pub(crate) struct MvArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The name of the tensor
    pub(crate) old: String,
    /// The new name
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

#[derive(clap::Args)]
pub(crate) struct RmArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The names to remove
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct CpArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The name of the tensor
    pub(crate) src: String,
    /// The second name
    #[arg(value_name = "NEW")]
    pub(crate) dst: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

#[derive(clap::Args)]
pub(crate) struct AppendArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tensor to append to
    pub(crate) name: String,
    /// Files with one array each, whose dtype and row size match the tensor
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// The store
    pub(crate) store: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct CompactArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// First copy elements of files that were imported in place into the store
    #[arg(long)]
    pub(crate) materialize: bool,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tensors to verify; the whole store if none is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(clap::Args)]
pub(crate) struct RepairArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Repair the store
    #[arg(long)]
    pub(crate) apply: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop after N lines
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Stop with exit code 1 if no commit arrives for this long
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
}

#[derive(clap::Args)]
pub(crate) struct Existing {
    /// Refuse to replace an existing tensor or file
    #[arg(long)]
    no_clobber: bool,
}

impl Existing {
    pub(crate) fn policy(&self) -> OnExisting {
        if self.no_clobber { OnExisting::Refuse } else { OnExisting::Replace }
    }
}

#[derive(clap::Args)]
pub(crate) struct External {
    /// Which files imported in place may be opened: none, those in or below the store's parent directory, or any
    #[arg(long, value_name = "WHERE", value_enum, default_value = "beside", env = "STRIDEMAP_EXTERNAL")]
    external: Where,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Where {
    None,
    Beside,
    Anywhere,
}

impl External {
    pub(crate) fn allowed(&self) -> ExternalFiles {
        match self.external {
            Where::None => ExternalFiles::Refuse,
            Where::Beside => ExternalFiles::Beside,
            Where::Anywhere => ExternalFiles::Anywhere,
        }
    }

    /// Returns the options for opening a store whose elements may be read.
    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions::new().external(self.allowed())
    }
}
