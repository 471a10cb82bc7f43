use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use stridemap::interop::ForeignOptions;
use stridemap::interop::npz::Packing;
use stridemap::{DType, ExternalFiles, OnExisting, StoreOptions, interop};

use crate::expr;

fn expr_help(example: &str) -> String {
    format!(
        "\
EXPR is a NAME, then any of
  [0:10, ::-2, -1, ..., None]
{}
An axis is a number or a name. What gives a list is followed by the number of one: .chunk(3)[-1]
In EXPR, a name with \"[\" or \".word(\" in it is quoted, as ls prints it: 'odd [name]'.
Wherever a NAME alone is asked for, it is taken as it is.

Example:
  stridemap {example}",
        expr::help()
    )
}

/// Keep tensors, and views of them, in a memory-mapped store on disk.
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
    /// A model of several .safetensors files is named by its index, model.safetensors.index.json. The metadata of a
    /// .safetensors file, and the plain values of a .pt file, become attributes of the store. An import that fails half-way
    /// or is killed has changed nothing, but that a new store is there, and empty; what else it left goes with the next
    /// commit, or with gc.
    #[command(after_help = "Example:\n  stridemap import model.safetensors bias.npy model.smap")]
    Import(ImportArgs),
    /// Write tensors to a .safetensors, .npy or .npz file, or copy a store that others may be writing to a new .smap
    ///
    /// A copy of a store has one generation of it, whole, where cp -r takes files of several. It has a uuid of its own. Where
    /// the file system can, it shares blocks with the store. Elements are verified as they are copied, and damage is an error. Nothing
    /// may be at COPY.smap; a copy that is killed leaves a directory .stage-* beside it, which may be deleted.
    #[command(
        after_help = "Example:\n  stridemap export model.smap weight.npy encoder.weight\n  stridemap export model.smap copy.smap"
    )]
    Export(ExportArgs),
    /// Describe a store or a file: summary, tensors, storages; and its attributes, where it is not JSON
    ///
    /// A .safetensors, .npy, .npz or .pt file is read where it lies; the names are those that an import gives. In JSON, a
    /// file has no uuid and no generation.
    #[command(
        after_help = "Example:\n  stridemap inspect model.smap --json | jq .store\n  stridemap inspect model.safetensors"
    )]
    Inspect(InspectArgs),
    /// List the tensors of a store or a file by ascending name: name, dtype and size
    #[command(after_help = "Example:\n  stridemap ls model.smap encoder.\n  stridemap ls model.pt")]
    Ls(LsArgs),
    /// Print the elements of a tensor of a store or a file, or of a view of one
    #[command(after_help = expr_help("show model.smap 'encoder.weight[0, ::2]'"))]
    Show(ShowArgs),
    /// Compare the tensors of two stores or files, by name
    ///
    /// Two tensors are equal when their dtypes, sizes and values are. Values are compared exactly, unless --rtol or --atol
    /// allow a distance: |a - b| <= atol + rtol * |b|, as numpy.allclose has it. NaN equals NaN and nothing else, and -0.0
    /// equals 0.0. Strides, offsets, shared storages, names of dimensions and attributes decide with --strict alone;
    /// attributes that differ are listed anyway. Of two files that hold one unnamed tensor each, those two are compared.
    ///
    /// A line is what is in A alone (-), in B alone (+), differs (~), or an attribute that does (@); the last one
    /// sums up. The exit code is 0 when all is equal, 1 when something differs, 2 after an error. A tensor that cannot be
    /// read is one; the others are compared all the same.
    #[command(
        after_help = "Example:\n  stridemap diff model.safetensors model.smap\n  stridemap diff before.pt after.pt --rtol 1e-5 --json | jq .equal"
    )]
    Diff(DiffArgs),
    /// Give a view of a tensor a name; no element is copied
    #[command(after_help = expr_help("view model.smap weight_t 'weight.t()'"))]
    View(ViewArgs),
    /// Rename a tensor
    #[command(after_help = "Example:\n  stridemap mv model.smap weight encoder.weight")]
    Mv(MvArgs),
    /// Remove tensors, in one commit: all or none
    #[command(after_help = "Example:\n  stridemap rm model.smap encoder.weight encoder.bias")]
    Rm(RmArgs),
    /// Give a tensor a second name; no element is copied
    #[command(after_help = "Example:\n  stridemap cp model.smap encoder.weight decoder.weight")]
    Cp(CpArgs),
    /// Write rows of arrays in files behind those of a tensor, in one commit: all or none
    ///
    /// Only the new rows are written. The tensor must be contiguous and end its storage, as one does that was imported
    /// alone. Those who have it loaded keep the rows that they have.
    #[command(after_help = "Example:\n  stridemap append model.smap log monday.npy tuesday.npy")]
    Append(AppendArgs),
    /// Delete the files that nothing needs any more
    #[command(after_help = "Example:\n  stridemap gc model.smap")]
    Gc(StoreArgs),
    /// Write storages again without the bytes that no tensor reaches
    ///
    /// Those of which at least a quarter can be given back, and 4 KiB. First it does what gc does. Tensors keep their names,
    /// sizes and elements. The space of what readers are still on comes back with the first commit, or gc, when they are
    /// gone. A storage that another process is changing is left. So is one that is damaged, and only then the exit code
    /// is 1.
    ///
    /// With --materialize it first copies what tensors reach of files that were imported in place into the store, which then
    /// needs them no more.
    #[command(after_help = "Example:\n  stridemap compact model.smap")]
    Compact(CompactArgs),
    /// Say where the space of a store is: what no tensor reaches, and why it is still there
    #[command(after_help = "Example:\n  stridemap stats model.smap --json | jq .reclaimable_bytes")]
    Stats(StatsArgs),
    /// Read a whole store, or some tensors, and report what is damaged; exits with 1 if anything is
    ///
    /// A line is the file, the place in it, what is wrong, the rule of the format that is broken, and the tensors that are
    /// affected. Of tensors that are named only the parts of 1 MiB are read that their elements are in. Files that nothing
    /// needs are no damage, and noted. Files that were imported in place are looked at, not read: whether each is the one
    /// that it was then; nor have mutable and live storages digests.
    #[command(
        after_help = "Example:\n  stridemap verify model.smap && echo whole\n  stridemap verify model.smap --json | jq .findings[].affects"
    )]
    Verify(VerifyArgs),
    /// Make a damaged store usable again; without --apply, only say what that takes, and exit with 1 if anything
    ///
    /// Nothing is guessed: what a checksum does not confirm is lost, and reported. FORMAT, LOCK and digests of storages are
    /// written again. If the newest generation cannot be read, the store steps back to an older one that is still there.
    /// Tensors that reach damaged bytes are lost, and others on the same storage are copied. What is removed or replaced is
    /// moved to lost+found in the store, and stays there. Repair is refused while a reader needs what would be moved; if it is
    /// interrupted, run it again.
    #[command(after_help = "Example:\n  stridemap repair model.smap\n  stridemap repair model.smap --apply")]
    Repair(RepairArgs),
    /// Print a line a commit, as other processes make them, until it is interrupted
    ///
    /// A line is the generation, and the names that came (+), have another header (~), or went (-). Commits that come faster
    /// than they can be told are told together: "7 since 4" is all that 5 to 7 changed. What is changed in place is no
    /// commit.
    #[command(after_help = "Example:\n  stridemap watch model.smap --json | jq -c .added")]
    Watch(WatchArgs),
}

#[derive(clap::Args)]
#[command(override_usage = "stridemap import [OPTIONS] <FILE>... <STORE>")]
pub(crate) struct ImportArgs {
    /// Files to import, whose kind is told by their content (a tensor alone, as in .npy, is named after its file); and the
    /// store, which is created when nothing is there
    #[arg(required = true, value_name = "FILE... STORE")]
    pub(crate) paths: Vec<PathBuf>,
    /// Leave the elements in the files, and give the store headers over them; the files must then stay as they are
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) external: External,
    /// Put P before every name
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Say of each file whether it was copied, or shares its blocks on the disk with the store
    #[arg(long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

/// How files are read.
#[derive(clap::Args)]
pub(crate) struct Reading {
    /// Turn the bytes of big-endian arrays of NumPy around; without this they are refused
    #[arg(long)]
    byteswap: bool,
    /// What the elements are that NumPy has no type for, V1 or V2: float8_e4m3fn, bfloat16, ...
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
    /// The file to write; its ending, .safetensors, .npy or .npz, says the kind; .smap is a copy of the store
    pub(crate) out: PathBuf,
    /// The tensors to write; all of them when none is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The order in which elements are written to .npy and .npz
    #[arg(long, value_enum, default_value_t = Order::C)]
    pub(crate) order: Order,
    /// Compress the arrays of an .npz file
    #[arg(long)]
    compress: bool,
    /// Write a .safetensors model in parts of at most SIZE bytes of elements, and an index: 5GB, 500MB, 1GiB
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

impl From<Order> for interop::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::C => interop::Order::C,
            Order::F => interop::Order::F,
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct InspectArgs {
    /// The store, or a file of another format, which is told by its content
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
    /// The store, or a file of another format, which is told by its content
    #[arg(value_name = "STORE|FILE")]
    pub(crate) source: PathBuf,
    /// Only names that begin so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print one JSON object a tensor
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// The store, or a file of another format, which is told by its content
    #[arg(value_name = "STORE|FILE")]
    pub(crate) source: PathBuf,
    /// The tensor, or the view of it
    pub(crate) expr: String,
    /// Print one JSON object with every element, row by row in one list
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// A store, or a file of another format
    pub(crate) a: PathBuf,
    /// Another
    pub(crate) b: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Compare names, dtypes and sizes, and read no element
    #[arg(long, conflicts_with_all = ["rtol", "atol"])]
    pub(crate) no_values: bool,
    /// Compare how tensors lie in their storages, and attributes, too
    #[arg(long)]
    pub(crate) strict: bool,
    /// How far values may be apart, relative to those of B
    #[arg(long, value_name = "R", default_value = "0", hide_default_value = true, value_parser = distance)]
    pub(crate) rtol: f64,
    /// How far values may be apart
    #[arg(long, value_name = "T", default_value = "0", hide_default_value = true, value_parser = distance)]
    pub(crate) atol: f64,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) external: External,
}

fn distance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0. ..f64::INFINITY).contains(&x) => Ok(x),
        _ => Err("a number from 0 on is expected".to_owned()),
    }
}

#[derive(clap::Args)]
pub(crate) struct ViewArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The name to give
    pub(crate) new: String,
    /// The view to give it to
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
    /// The name that the tensor has
    pub(crate) old: String,
    /// The name to give
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

#[derive(clap::Args)]
pub(crate) struct RmArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The names to take away
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct CpArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The name that the tensor has
    pub(crate) src: String,
    /// The name to give too
    pub(crate) dst: String,
    #[command(flatten)]
    pub(crate) existing: Existing,
}

#[derive(clap::Args)]
pub(crate) struct AppendArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tensor to make longer
    pub(crate) name: String,
    /// Files of one array each, of the dtype and the size of the tensor but for their number of rows
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
    /// Copy what was imported in place into the store first
    #[arg(long)]
    pub(crate) materialize: bool,
    #[command(flatten)]
    pub(crate) external: External,
}

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tensors to verify; everything when none is named
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
    /// Do it
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
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// End after so many lines
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// End when there was no commit for so long, with exit code 1
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
}

#[derive(clap::Args)]
pub(crate) struct Existing {
    /// Refuse to replace what is there already
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
    /// Which files imported in place may be opened: none, those under the directory that holds the store, or any
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

    /// To open a store whose tensors are read.
    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions::new().external(self.allowed())
    }
}
