//! `generate bash`, `zsh` and `fish`: prints the script that makes a shell complete the words of a command line.
//!
//! The script runs this program for each completion, with `STRIDEMAP_COMPLETE` set.

use std::io::Write;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::env::{Bash, Fish, Shells, Zsh};

use super::candidates::with_names;
use crate::args::Args;
use crate::error::{Error, Result};

const SHELLS: Shells<'static> = Shells(&[&Bash, &Zsh, &Fish]);

/// The variable that is set when a script runs this program.
const VARIABLE: &str = "STRIDEMAP_COMPLETE";

const NAME: &str = "stridemap";

/// Makes `STORE@TAG` one word in bash, which otherwise completes the name of a host after an @.
const ONE_WORD: &str = "COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}";

/// Prints the script for a shell.
pub(super) fn print(name: &str, out: &mut impl Write) -> Result<()> {
    let unknown = || Error::Refused(format!("generate: no shell is named {name:?}"));
    let shell = SHELLS.completer(name).ok_or_else(unknown)?;
    shell.write_registration(VARIABLE, NAME, NAME, NAME, out)?;
    if name == "bash" {
        writeln!(out, "{ONE_WORD}")?;
    }
    Ok(())
}

/// Prints completions and exits, if a script asks for them.
pub(crate) fn complete() {
    CompleteEnv::with_factory(|| with_names(Args::command())).var(VARIABLE).shells(SHELLS).complete();
}
