//! The commands of the command line, and the options that several of them share.

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use stridemap::{DType, ExternalFiles, OnExisting, StoreOptions};
use stridemap_interop::ForeignOptions;

use crate::care::{CompactArgs, DuArgs, GcArgs, RepairArgs, VerifyArgs, WatchArgs};
use crate::change::{AppendArgs, AttrArgs, ExportArgs, ImportArgs, LnArgs, MvArgs, RmArgs, ViewArgs};
use crate::diff::DiffArgs;
use crate::error::{Error, Result};
use crate::look::{InfoArgs, LsArgs, MapArgs, ReportArgs, ShowArgs, StatsArgs, TreeArgs};
use crate::plot::PlotArgs;
use crate::shell::{CompletionsArgs, ManArgs};
use crate::ui::{Global, help_color, help_width};

/// Store tensors and views of them in a memory-mapped store on disk.
#[derive(Parser)]
#[command(name = "stridemap", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

/// Parses the arguments of this process, applies the global options, and returns the command. If clap answers with the
/// help or the version, prints it and exits.
pub(crate) fn parse() -> Result<Command> {
    let command = Args::command().term_width(help_width()).color(help_color());
    let command = command.mut_subcommands(with_negative_numbers);
    let parsed = command.try_get_matches().and_then(|matches| Args::from_arg_matches(&matches));
    let args = parsed.map_err(|e| match e.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => e.exit(),
        _ => Error::Refused(in_our_style(&e.render().to_string())),
    })?;
    args.global.apply();
    Ok(args.command)
}

/// Takes `-1` after an option as its value, and not as another option, so that the error is about the value.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| {
        let takes_value = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_value)
    })
}

/// Rewrites an error of clap as our own errors are written: what is wrong on one line, and the usage below.
fn in_our_style(error: &str) -> String {
    let error = error.split("\nFor more information").next().unwrap_or_default();
    let (wrong, usage) = error.split_once("\nUsage:").unwrap_or((error, ""));
    // clap also lists the hidden commands.
    let wrong = wrong.split(" [subcommands:").next().unwrap_or_default();
    let usage = usage.trim();
    let mut text = String::new();
    for line in wrong.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("tip: ") {
            // The advice to write "--" before an argument is seldom what helps.
            Some(tip) if tip.contains("as a value") => {}
            Some(tip) => text.extend(["; ", tip]),
            None if text.is_empty() => text += line.trim_start_matches("error: "),
            None => text.extend([" ", line]),
        }
    }
    // clap also says "none was supplied" if the value is an empty string.
    let text = text.replace(" but none was supplied", ", and it must not be empty");
    let text = text.replace("invalid digit found in string", "expected a whole number");
    if usage.is_empty() {
        return text;
    }
    const COPY: &str = "unrecognized subcommand 'cp'";
    if text.starts_with(COPY) {
        return format!("{COPY}; export copies a store, and ln adds a second name for a tensor");
    }
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
    let command = usage.split(' ').take_while(is_word).collect::<Vec<_>>().join(" ");
    let is_drawing = ["stridemap plot", "stridemap report"].contains(&&*command);
    let extra = text.strip_prefix("unexpected argument '").and_then(|rest| rest.strip_suffix("' found"));
    let hint = match extra {
        Some(path) if is_drawing && !path.starts_with('-') => format!("; to write a file, use -o {path}"),
        _ => String::new(),
    };
    format!("{text}{hint}\nUsage: {usage}\nsee {command} --help")
}

/// Parses the name of a dtype.
pub(crate) fn parse_dtype(text: &str) -> Result<DType, String> {
    let names = || DType::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
    text.parse().map_err(|_| format!("expected one of {}", names()))
}

/// The help text of a command is the doc comment of the type of its arguments, such as `InfoArgs`.
#[derive(Subcommand)]
pub(crate) enum Command {
    Info(InfoArgs),
    #[command(hide = true)]
    Inspect(InfoArgs),
    Ls(LsArgs),
    Tree(TreeArgs),
    Show(ShowArgs),
    Stats(StatsArgs),
    Plot(PlotArgs),
    Map(MapArgs),
    Report(ReportArgs),
    Diff(DiffArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    View(ViewArgs),
    Ln(LnArgs),
    Mv(MvArgs),
    Rm(RmArgs),
    Append(AppendArgs),
    Attr(AttrArgs),
    Du(DuArgs),
    Compact(CompactArgs),
    #[command(hide = true)]
    Gc(GcArgs),
    Verify(VerifyArgs),
    Repair(RepairArgs),
    Watch(WatchArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

// Options for reading files in other formats.
#[derive(clap::Args, Default)]
pub(crate) struct Reading {
    /// Convert big-endian NumPy arrays to little-endian; without this they are refused
    #[arg(long)]
    byteswap: bool,
    /// The dtype of elements that NumPy stores as untyped bytes (V1, V2): float8_e4m3fn, bfloat16, ...
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
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
    /// The default
    #[arg(long = "no-clobber", hide = true)]
    _no_clobber: bool,
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

    /// Returns the options for opening a store by a command that reads elements, and so may open external files.
    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions::new().external(self.allowed())
    }
}
