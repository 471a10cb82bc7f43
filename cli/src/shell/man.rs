//! `man`: man pages, from the same text as `--help`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::args::Args;
use crate::error::{Error, Result};
use crate::ui::examples;

/// Print a man page, or write all of them
///
/// The pages have the same text as --help. Without a command, this prints the page that lists the commands.
#[derive(clap::Args)]
#[command(after_help = examples(&["man import | man -l -"]))]
pub(crate) struct ManArgs {
    /// The command whose page to print
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
    /// Write all pages to this directory, as stridemap.1, stridemap-import.1 and so on; creates it if necessary
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &ManArgs, out: &mut impl Write) -> Result<()> {
    let mut command = Args::command().disable_help_subcommand(true);
    if let Some(dir) = &args.dir {
        let failed = |e| Error::Refused(format!("man --dir {}: {e}", dir.display()));
        return fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir)).map_err(failed);
    }
    command.build();
    let page = match &args.command {
        None => command,
        Some(name) => command.find_subcommand(name).cloned().ok_or_else(|| {
            Error::Refused(format!("man: no command is named {name:?}; stridemap --help lists them"))
        })?,
    };
    Ok(Man::new(page).render(out)?)
}
