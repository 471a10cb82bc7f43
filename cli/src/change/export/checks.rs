//! What an export refuses before it writes anything.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use stridemap::Tensor;
use stridemap_interop::{FileFormat, ForeignOptions};

use super::Export;
use super::format::{Format, Order};
use super::sources::Sources;
use crate::at::split;
use crate::error::{Error, Result};
use crate::in_place::Outputs;
use crate::input::Input;
use crate::names::{quoted, shell_word};
use crate::output_file::check_replaceable;
use crate::remote::shown;
use crate::separator::has_separator;

/// Refuses tensors that the file cannot hold, and a prefix that selects nothing.
pub(super) fn check_contents(
    args: &Export<'_>,
    format: Format,
    tensors: &[(String, Tensor)],
    has_attributes: bool,
) -> Result<()> {
    let refused = |why| Err(Error::at("export", args.out, why));
    let is_npy = matches!(format, Format::Npy);
    let writes_attributes = matches!(format, Format::Safetensors | Format::Gguf) && has_attributes;
    if tensors.iter().any(|(name, _)| name.is_empty()) && !is_npy {
        let prefix = &args.options.prefix;
        return match prefix.as_str() {
            "" => refused(
                "a tensor has no name; import the file with --rename =NEW, and export the store".to_owned(),
            ),
            _ => refused(format!(
                "the tensor {prefix:?} has no name without the prefix; use a longer name or a shorter prefix"
            )),
        };
    }
    if tensors.is_empty() && !writes_attributes && !args.options.prefix.is_empty() {
        let why = format!("no name begins with {:?}; ls lists the names", args.options.prefix);
        return Err(Error::NoMatch(format!("export {}: {why}", args.out.display())));
    }
    let prefix = &args.options.prefix;
    let all_begin_with = |end: &char| tensors.iter().all(|(name, _)| name.starts_with(*end));
    let forgotten = ['.', '/'].into_iter().find(|end| !prefix.ends_with(*end) && all_begin_with(end));
    if let Some(end) = forgotten.filter(|_| !(prefix.is_empty() || tensors.is_empty() || has_separator())) {
        return refused(format!(
            "without the prefix {prefix:?}, every name would begin with {end:?}; write --prefix {}, or -- before the \
             arguments if that is meant",
            shell_word(&format!("{prefix}{end}"))
        ));
    }
    if is_npy && tensors.len() != 1 {
        let what = format!("a .npy file holds one tensor, not {}", tensors.len());
        return refused(format!("{what}; name the one to export, or write an .npz file"));
    }
    Ok(())
}

/// Refuses to replace a file unless `--force` is given, and always one that a store uses in place. Returns whether a
/// file is replaced.
pub(super) fn check_files(
    args: &Export<'_>,
    files: &[PathBuf],
    tensors: &[(String, Tensor)],
    sources: &Sources,
) -> Result<bool> {
    let mut is_replacing = false;
    // The index is named first.
    for file in files.last().into_iter().chain(files) {
        is_replacing |= check_replaceable("export", file, args.options.existing.force)?;
    }
    let names = tensors.iter().map(|(name, _)| name.as_str()).collect();
    let outputs = Outputs { command: "export", paths: files, names };
    sources.iter().try_for_each(|input| outputs.check(input))?;
    if is_replacing {
        check_is_no_source(args, tensors, sources)?;
    }
    Ok(is_replacing)
}

/// Refuses to replace a file that was probably meant as a source: `export a.safetensors b.safetensors --force` has no word for the
/// file to write, and would lose what is in the last source. With sources of its format, and all of their tensors, an export only
/// merges, and it would have merged this file. A file with no other tensors than those that are written is replaced: it is
/// probably their earlier merge.
fn check_is_no_source(args: &Export<'_>, tensors: &[(String, Tensor)], sources: &Sources) -> Result<()> {
    let Ok(there) = ForeignOptions::new().skip_unreadable(true).open(args.out) else { return Ok(()) };
    // Of the formats that are written, .npy names its tensor after the file, .npz has names that an export changes, and a long
    // value of the metadata of .gguf looks like a tensor.
    if !matches!(there.format(), FileFormat::Safetensors) {
        return Ok(());
    }
    let is_alike = |input: &Input| matches!(input, Input::File(file) if file.format() == there.format());
    let is_merge = args.names.is_empty() && args.options.prefix.is_empty() && sources.iter().all(is_alike);
    let is_written = |name: &str| tensors.iter().any(|(written, _)| written == name);
    match there.tensors().find(|info| !is_written(&info.name)).filter(|_| is_merge) {
        Some(lost) => {
            let lost = quoted(&lost.name);
            let why = format!(
                "the last file is the one to write, and this one has a tensor {lost} that no source has; if it is a source, \
                 name a file to write after it; if not, delete it first"
            );
            Err(Error::at("export", args.out, why))
        }
        None => Ok(()),
    }
}

/// Refuses `--tags` for anything but a copy of a whole store.
pub(super) fn check_tags(args: &Export<'_>, format: Format) -> Result<()> {
    let refused = |why: &str| Err(Error::at("export", args.out, why));
    let store = args.sources.first().copied().unwrap_or(Path::new(""));
    match split(store) {
        _ if !args.options.tags => Ok(()),
        _ if !matches!(format, Format::Store) => {
            refused("--tags is for a copy of the store; name it COPY.smap")
        }
        _ if !args.names.is_empty() => {
            refused("--tags copies whole generations; leave out the names, or leave out --tags")
        }
        Some((store, tag)) => refused(&format!(
            "--tags copies all tagged generations and the newest one; name the store, {}, without @{tag}",
            shown(store)
        )),
        None => Ok(()),
    }
}

/// Refuses to write a file to a terminal, and flags that do not apply to standard output, or to a file.
pub(super) fn check_pipe(args: &Export<'_>) -> Result<()> {
    let refused = |why| Err(Error::at("export", args.out, why));
    if !args.is_piped() {
        return match args.options.format {
            Some(_) => refused("--format is for standard output; the extension of a file selects its format"),
            None => Ok(()),
        };
    }
    if args.options.json {
        return refused("--json is for files; standard output gets the tensors");
    }
    if args.options.max_shard_size.is_some() {
        return refused("--max-shard-size is for files; standard output is always one file");
    }
    if io::stdout().is_terminal() && !args.options.existing.is_dry_run() {
        return refused("standard output is a terminal; redirect it to a file or a pipe");
    }
    Ok(())
}

/// Refuses flags that do not apply to the format: the user probably meant a different format.
pub(super) fn check_flags(args: &Export<'_>, format: Format) -> Result<()> {
    let refused = |why| Err(Error::at("export", args.out, why));
    match format {
        Format::Safetensors | Format::Gguf | Format::Store if args.options.order != Order::C => {
            refused("--order is for .npy and .npz files; others are always row-major")
        }
        Format::Gguf | Format::Npy | Format::Npz | Format::Store if args.options.max_shard_size.is_some() => {
            refused("--max-shard-size is for .safetensors files; others are always one file")
        }
        Format::Store if args.options.to.is_some() => refused(
            "--to is for files in other formats; a copy of a store keeps its elements; convert the copy",
        ),
        Format::Store if !args.options.prefix.is_empty() => {
            refused("--prefix is for files in other formats; a copy of a store keeps its names")
        }
        Format::Safetensors | Format::Gguf | Format::Npy | Format::Store if args.options.compress => {
            refused("--compress is for .npz files; others are never compressed")
        }
        _ => Ok(()),
    }
}
