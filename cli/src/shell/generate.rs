//! `generate`: prints what is installed beside the program.

use std::io::Write;
use std::path::PathBuf;

use super::{completions, man};
use crate::error::{Error, Result};

/// Print a script that completes command lines, or man pages
///
/// A script completes commands, options, paths, tensor names and tags. Load it when the shell starts: add the line of the
/// example to ~/.bashrc or ~/.zshrc, or write the script to ~/.config/fish/completions/stridemap.fish. Names are looked up in
/// the store or file that the command line names.
///
/// The man pages have the same text as --help. Without DIR, man prints the page that lists the commands.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  source <(stridemap generate bash)\n  stridemap generate man ~/.local/share/man/man1"
)]
pub(crate) struct GenerateArgs {
    /// The shell that runs the script, or man
    #[arg(value_parser = ["bash", "zsh", "fish", "man"])]
    what: String,
    /// With man: write all pages to this directory, as stridemap.1, stridemap-import.1 and so on; creates it if necessary
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &GenerateArgs, out: &mut impl Write) -> Result<()> {
    match &args.dir {
        dir if args.what == "man" => man::print(dir.as_deref(), out),
        Some(dir) => Err(Error::at("generate", dir, "only man pages are written to a directory")),
        None => completions::print(&args.what, out),
    }
}
