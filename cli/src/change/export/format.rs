//! The formats of files that an export writes.

use std::ffi::OsStr;

use clap::ValueEnum;

use super::Export;
use crate::error::{Error, Result};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// Row-major
    #[value(name = "C", alias = "c")]
    C,
    /// Column-major
    #[value(name = "F", alias = "f")]
    F,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Format {
    Npy,
    Safetensors,
    Gguf,
    #[value(skip)]
    Npz,
    #[value(skip)]
    Store,
}

impl Format {
    /// Returns the format that the options select.
    pub(super) fn of(args: &Export<'_>) -> Result<Self> {
        let out = args.out;
        if args.is_piped() {
            // npz and stores cannot be piped.
            return Ok(args.options.format.unwrap_or(Format::Safetensors));
        }
        let argument_hint = if args.names.is_empty() { "" } else { "; OUT comes before the names" };
        match out.extension().and_then(OsStr::to_str) {
            Some("smap") => Ok(Format::Store),
            Some("safetensors") => Ok(Format::Safetensors),
            Some("gguf") => Ok(Format::Gguf),
            Some("npy") => Ok(Format::Npy),
            Some("npz") => Ok(Format::Npz),
            _ => {
                let why = "the extension selects the format and must be .safetensors, .gguf, .npy, .npz, or .smap \
                           for a copy of the store";
                Err(Error::at("export", out, format_args!("{why}{argument_hint}")))
            }
        }
    }
}
