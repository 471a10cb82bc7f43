//! `generate man`: man pages, from the same text as `--help`.

use std::fs;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::args::Args;
use crate::error::{Error, Result};

/// Prints the page that lists the commands, or writes all pages to a directory.
pub(super) fn print(dir: Option<&Path>, out: &mut impl Write) -> Result<()> {
    let mut command = Args::command().disable_help_subcommand(true);
    let Some(dir) = dir else {
        command.build();
        return Ok(Man::new(command).render(out)?);
    };
    let failed = |e| Error::at("generate man", dir, e);
    fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir)).map_err(failed)
}
