//! The commands of the command line, and the options that several of them share.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use stridemap::{DType, ExternalFiles, OnExisting, StoreOptions};
use stridemap_interop::ForeignOptions;

use crate::care::{compact, du, salvage, verify};
use crate::change::{append, attr, convert, copy, edit, export, import, mv};
use crate::diff::DiffArgs;
use crate::error::Result;
use crate::history::{log, prune, restore, tag};
use crate::input::Input;
use crate::look::{info, ls, report, show, stats, tree};
use crate::plot::PlotArgs;
use crate::remote::{follow, pull, push};
use crate::shell::generate;
use crate::ui::{Global, examples, help_width};

/// Store tensors and views of them in a memory-mapped store on disk.
#[derive(Parser)]
#[command(name = "stridemap", version, term_width = help_width(), after_help = overview())]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

/// Returns the words that the help of all commands uses.
fn overview() -> String {
    let examples = examples(&[
        "import model.pt model.smap",
        "stats model.smap 'encoder.*'",
        "export model.smap model.safetensors --to float16",
        "help view",
    ]);
    format!(
        "A store is a directory of named tensors. Each has a header, which says where its elements are in a storage: a file. \
         Tensors that share elements, such as a matrix and a row of it, are on one storage. Each change is a commit, and makes \
         a new generation of the store. A tag is a name for a generation and keeps what it needs: STORE@TAG reads it, and \
         restore goes back to it. Commands that read a store also read .safetensors, .npy, .npz, .pt and .gguf files.\n\n{examples}"
    )
}

impl Args {
    /// Applies the global options, and returns the command.
    pub(crate) fn apply(self) -> Command {
        self.global.apply();
        self.command
    }
}

/// Parses the name of a dtype, in the spelling of this program, PyTorch, NumPy or safetensors: float32, torch.float32, F32.
pub(crate) fn parse_dtype(text: &str) -> Result<DType, String> {
    let names = || DType::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
    let lower = text.to_lowercase();
    let name =
        ["torch.", "numpy.", "np."].iter().find_map(|module| lower.strip_prefix(module)).unwrap_or(&lower);
    let spelled = match name {
        "bf16" => "bfloat16".to_owned(),
        "f8_e4m3" => "float8_e4m3fn".to_owned(),
        "f8_e5m2" => "float8_e5m2".to_owned(),
        // The same in PyTorch and NumPy.
        "half" => "float16".to_owned(),
        "double" => "float64".to_owned(),
        // NumPy's float is another one than that of PyTorch.
        "float" | "short" | "int" | "long" if lower.starts_with("torch.") => {
            let names = [("float", "float32"), ("short", "int16"), ("int", "int32"), ("long", "int64")];
            names.iter().find(|(other, _)| *other == name).map_or(name, |(_, name)| name).to_owned()
        }
        _ => {
            let kinds = [("f", "float"), ("fp", "float"), ("i", "int"), ("u", "uint"), ("c", "complex")];
            let is_bits = |bits: &str| !bits.is_empty() && bits.chars().all(|c| c.is_ascii_digit());
            let short = |(letter, kind): &(&str, &str)| {
                name.strip_prefix(letter).filter(|bits| is_bits(bits)).map(|bits| format!("{kind}{bits}"))
            };
            kinds.iter().find_map(short).unwrap_or_else(|| name.to_owned())
        }
    };
    spelled
        .parse()
        .map_err(|_| format!("expected one of {}; f32 and torch.float32 are float32, too", names()))
}

/// The help text of a command is the doc comment of the type of its arguments, such as `InfoArgs`.
#[derive(Subcommand)]
pub(crate) enum Command {
    Info(info::InfoArgs),
    Ls(ls::LsArgs),
    Tree(tree::TreeArgs),
    Show(show::ShowArgs),
    Stats(stats::StatsArgs),
    Plot(PlotArgs),
    Report(report::ReportArgs),
    Diff(DiffArgs),
    Import(import::ImportArgs),
    Export(export::ExportArgs),
    Copy(copy::CopyArgs),
    Convert(convert::ConvertArgs),
    #[command(visible_alias = "ln")]
    View(edit::ViewArgs),
    Mv(mv::MvArgs),
    Rm(edit::RmArgs),
    Append(append::AppendArgs),
    Attr(attr::AttrArgs),
    Tag(tag::TagArgs),
    Log(log::LogArgs),
    Restore(restore::RestoreArgs),
    Prune(prune::PruneArgs),
    Du(du::DuArgs),
    Compact(compact::CompactArgs),
    Verify(verify::VerifyArgs),
    Salvage(salvage::SalvageArgs),
    Push(push::PushArgs),
    Pull(pull::PullArgs),
    Follow(follow::FollowArgs),
    Generate(generate::GenerateArgs),
}

// A store or file to read.
#[derive(clap::Args)]
pub(crate) struct Source {
    /// The store, its URL, a tagged generation (STORE@TAG, URL@TAG), or a file in another format, detected from its content
    #[arg(index = 1, value_name = "STORE|FILE")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    reading: Reading,
}

impl Source {
    /// Opens the source. The options are those for a store.
    pub(crate) fn open(&self, options: &StoreOptions) -> Result<Input> {
        Input::open(&self.path, &self.reading, options)
    }
}

// Options for reading files in other formats.
#[derive(clap::Args, Default)]
pub(crate) struct Reading {
    /// The dtype of elements that NumPy stores as untyped bytes (V1, V2): float8_e4m3fn, bfloat16, ...
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    untyped: Option<DType>,
}

impl Reading {
    pub(crate) fn options(&self) -> ForeignOptions {
        let options = ForeignOptions::new();
        match self.untyped {
            Some(dtype) => options.untyped(dtype),
            None => options,
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct DryRun {
    /// Show what would happen, and change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

#[derive(clap::Args)]
pub(crate) struct Existing {
    /// Replace existing tensors or files; without this they are refused
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Existing {
    pub(crate) fn policy(&self) -> OnExisting {
        if self.force { OnExisting::Replace } else { OnExisting::Refuse }
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run.dry_run
    }
}

#[derive(clap::Args)]
pub(crate) struct External {
    /// Which files imported in place may be opened: none, those in or below the store's parent directory, or any
    #[arg(long, value_name = "WHERE", default_value = "beside", env = "STRIDEMAP_EXTERNAL")]
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

    /// Returns the options for opening a store by a command that reads elements, and so may open external files.
    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions::new().external(self.allowed())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command as ClapCommand, CommandFactory as _};

    use super::*;

    #[test]
    fn dtypes_have_the_usual_spellings() {
        for (dtype, spellings) in [
            (DType::F32, &["float32", "f32", "F32", "torch.float32", "torch.float", "np.float32"][..]),
            (DType::F16, &["f16", "torch.half", "np.half", "half", "Float16"]),
            (DType::F64, &["double", "torch.double", "np.double"]),
            (DType::BF16, &["bf16", "BF16", "torch.bfloat16"]),
            (DType::I64, &["i64", "I64", "torch.long", "int64"]),
            (DType::U8, &["u8", "numpy.uint8"]),
            (DType::Bool, &["BOOL", "torch.bool"]),
        ] {
            assert!(spellings.iter().all(|text| parse_dtype(text) == Ok(dtype)), "{spellings:?}");
        }
        for &dtype in DType::ALL {
            assert_eq!(parse_dtype(dtype.name()), Ok(dtype));
        }
        for text in ["float", "f", "f31", "np.float", "", "torch."] {
            assert!(parse_dtype(text).unwrap_err().starts_with("expected one of bool, uint8, "), "{text}");
        }
    }

    /// Adds the commands with no commands below them, and the long options, except those that clap adds.
    fn collect(command: &ClapCommand, (commands, options): (&mut BTreeSet<String>, &mut BTreeSet<String>)) {
        options.extend(command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned));
        for below in command.get_subcommands() {
            commands.insert(below.get_name().to_owned());
            collect(below, (&mut BTreeSet::new(), options));
        }
    }

    /// A user has to learn each of them, so one that is added needs a reason why it is more than the others.
    #[test]
    fn commands_and_options_stay_few() {
        let (mut commands, mut options) = (BTreeSet::new(), BTreeSet::new());
        collect(&Args::command(), (&mut commands, &mut options));
        println!("{} commands: {}", commands.len(), commands.iter().cloned().collect::<Vec<_>>().join(" "));
        println!("{} options: {}", options.len(), options.iter().cloned().collect::<Vec<_>>().join(" "));
        assert!(commands.len() <= 29, "{commands:?}");
        assert!(options.len() <= 56, "{options:?}");
    }
}
