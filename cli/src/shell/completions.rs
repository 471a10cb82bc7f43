//! `completions`: prints the script that makes a shell complete the words of a command line.
//!
//! The script runs this program for each completion, with `STRIDEMAP_COMPLETE` set.

use std::io::Write;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::env::{Bash, Fish, Shells, Zsh};

use super::candidates::with_names;
use crate::args::Args;
use crate::error::{Error, Result};

/// Print a script that completes commands, options, paths, tensor names and tags
///
/// Load it when the shell starts: add the line of the example to ~/.bashrc or ~/.zshrc, or write the script to
/// ~/.config/fish/completions/stridemap.fish. Names are looked up in the store or file that the command line names.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  source <(stridemap completions bash)")]
pub(crate) struct CompletionsArgs {
    /// The shell that runs the script
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

const SHELLS: Shells<'static> = Shells(&[&Bash, &Zsh, &Fish]);

/// The variable that is set when a script runs this program.
const VARIABLE: &str = "STRIDEMAP_COMPLETE";

const NAME: &str = "stridemap";

/// Makes `STORE@TAG` one word in bash, which otherwise completes the name of a host after an @.
const ONE_WORD: &str = "COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}";

pub(crate) fn run(args: &CompletionsArgs, out: &mut impl Write) -> Result<()> {
    let unknown = || Error::Refused(format!("completions: no shell is named {:?}", args.shell));
    let shell = SHELLS.completer(&args.shell).ok_or_else(unknown)?;
    shell.write_registration(VARIABLE, NAME, NAME, NAME, out)?;
    if args.shell == "bash" {
        writeln!(out, "{ONE_WORD}")?;
    }
    Ok(())
}

/// Prints completions and exits, if a script asks for them.
pub(crate) fn complete() {
    CompleteEnv::with_factory(|| with_names(Args::command())).var(VARIABLE).shells(SHELLS).complete();
}
