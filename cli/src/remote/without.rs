//! A build without remotes: what is said of URLs.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use stridemap::{Snapshot, Store, StoreOptions};

use crate::error::{Error, Result};

fn refused() -> Error {
    let why = "this stridemap was built without remotes, so it knows no URLs";
    Error::Refused(format!("{why}; build it with them: cargo install --locked --path cli --features remote"))
}

pub(crate) fn open(_: &StoreOptions, _: &Path) -> Result<(Store, Snapshot)> {
    Err(refused())
}

pub(crate) fn open_newest(_: &StoreOptions, _: &Path) -> Result<Store> {
    Err(refused())
}

/// This build does not know what the records of remotes in a store say.
pub(crate) fn note_unpullable(_: &Path) {}

/// A command that this build does not have
#[derive(clap::Args)]
pub(crate) struct Unavailable {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<OsString>,
}

/// Refuses the command.
pub(crate) fn run(_: &Unavailable, _: &mut impl Write) -> Result<()> {
    Err(refused())
}

pub(crate) mod push {
    pub(crate) use super::Unavailable as PushArgs;
    pub(crate) use super::run;

    pub(crate) fn interrupted_message() -> &'static str {
        "push: interrupted"
    }
}

pub(crate) mod pull {
    pub(crate) use super::Unavailable as PullArgs;
    pub(crate) use super::run;
}

pub(crate) mod follow {
    pub(crate) use super::Unavailable as FollowArgs;
    pub(crate) use super::run;
}

pub(crate) mod prune {
    use std::io::Write;
    use std::path::Path;

    use crate::error::Result;

    /// No options: all that this build has are about tags.
    #[derive(clap::Args)]
    pub(crate) struct RemoteArgs {}

    impl RemoteArgs {
        pub(crate) fn check_unused(&self, _: &Path) -> Result<()> {
            Ok(())
        }

        pub(crate) fn run(&self, _: &Path, _: Option<u64>, _: bool, _: &mut impl Write) -> Result<()> {
            Err(super::refused())
        }
    }
}
