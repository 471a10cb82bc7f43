//! `append`: adds rows from array files to a tensor, in one commit.

use std::io::Write;
use std::path::{Path, PathBuf};

use stridemap::{DType, ErrorKind, Source, Store, StoreOptions, Tensor};

use super::stdin::PIPE;
use crate::args::{DryRun, Reading};
use crate::error::{Error, Result};
use crate::input::{check_found, check_writable, open_store};
use crate::names::{name, quoted};
use crate::plan;
use crate::ui::{Progress, counted, examples, message, progress};
use crate::undo::Before;

/// Append rows from files to a tensor, in one commit: all or none
///
/// Only the new rows are written. The tensor must be contiguous and last in its storage, which is usually the case
/// for a tensor that was imported by itself. Processes that have already loaded the tensor keep seeing its old
/// size.
#[derive(clap::Args)]
#[command(after_help = examples(&["append model.smap log monday.npy tuesday.npy"]))]
pub(crate) struct AppendArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// The tensor to append to
    pub(crate) name: String,
    /// Files with one array each, whose dtype and row size match the tensor
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    before: Before,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

pub(crate) fn run(args: &AppendArgs, out: &mut impl Write) -> Result<()> {
    if args.files.iter().any(|path| path.as_os_str() == PIPE) {
        return Err(Error::Refused("append -: only import reads standard input; name a file".to_owned()));
    }
    // A file that does not hold exactly one tensor is refused before any row is written.
    let sources: Vec<Tensor> =
        args.files.iter().map(|path| only_tensor(path, &args.reading)).collect::<Result<_>>()?;
    let store = open_store(&StoreOptions::new(), &args.store)?;
    if args.dry_run.dry_run {
        return dry_run(args, &sources, &store, out);
    }
    let bar = progress("append", sources.iter().map(|source| source.nbytes() as u64).sum());
    let mut txn = store.begin()?;
    args.before.apply(&mut txn)?;
    let name = name(&args.name, &txn)?;
    let (mut added, mut total) = (0, 0);
    for (path, source) in args.files.iter().zip(&sources) {
        let rows = txn.append(&name, &Watched { source, bar: &bar }).map_err(|e| explain(path, args, e))?;
        (added, total) = (added + rows.len() as u64, rows.end);
    }
    let generation = txn.commit()?;
    bar.finish_and_clear();
    let (added, tagged) = (counted(added, "row"), args.before.described(generation));
    message(&format!("appended {added} to {name:?}, which now has {total}{tagged}: generation {generation}"));
    Ok(())
}

/// Rows whose bytes are counted as they are written.
struct Watched<'a> {
    source: &'a Tensor,
    bar: &'a Progress,
}

impl Source for Watched<'_> {
    fn dtype(&self) -> DType {
        self.source.dtype()
    }

    fn size(&self) -> Vec<usize> {
        self.source.size().to_vec()
    }

    fn names(&self) -> Vec<Option<&str>> {
        Source::names(self.source)
    }

    fn write_to(&self, sink: &mut dyn FnMut(&[u8]) -> stridemap::Result<()>) -> stridemap::Result<()> {
        self.source.write_to(&mut |bytes| {
            self.bar.inc(bytes.len() as u64);
            sink(bytes)
        })
    }
}

/// Prints what would be appended. The library makes the checks, and writes no rows.
fn dry_run(args: &AppendArgs, sources: &[Tensor], store: &Store, out: &mut impl Write) -> Result<()> {
    check_writable(store)?;
    let mut txn = store.begin()?;
    args.before.apply(&mut txn)?;
    let name = name(&args.name, &txn)?;
    // By the header: the elements may be in a file that this command does not open.
    let Some(info) = plan::info(&store.snapshot(), &name)? else {
        return Ok(txn.load(&name).map(drop)?); // says which names there are
    };
    let (mut total, mut added) = (info.header.size().first().copied().unwrap_or_default(), 0);
    for (path, source) in args.files.iter().zip(sources) {
        let rows = source.size().first().copied().unwrap_or_default();
        let checked = match rows {
            // This also succeeds for a tensor that cannot grow.
            0 => txn.append(&name, source).map(drop),
            _ => txn.ensure_growable(&name, source.dtype(), source.size(), 0),
        };
        checked.map_err(|e| explain(path, args, e))?;
        (added, total) = (added + rows, total + rows);
    }
    let (added, name) = (counted(added as u64, "row"), quoted(&name));
    Ok(writeln!(out, "would append {added} to {name}, which would then have {total}")?)
}

/// How to get a tensor that can grow.
const ADVICE: &str = "; to give it its own storage, export it to a .npy file, and import only that file";

/// Returns the only tensor of a file, backed by the file. Its elements are read when they are appended.
fn only_tensor(path: &Path, reading: &Reading) -> Result<Tensor> {
    check_found(path, "file")?;
    let file = reading.options().open(path)?;
    let mut names = file.tensors().map(|tensor| tensor.name);
    match (names.next(), names.count()) {
        (Some(name), 0) => Ok(file.load(&name)?),
        (first, others) => {
            let count = counted(others as u64 + u64::from(first.is_some()), "tensor");
            let why = format!(
                "{count}, but one is expected; import the file into a new store, and export the tensor with the rows to \
                 a .npy file"
            );
            Err(Error::at("append", path, why))
        }
    }
}

/// Adds context to an error: the file that was refused, and how a command-line user can get a tensor that grows.
fn explain(path: &Path, args: &AppendArgs, refused: stridemap::Error) -> Error {
    let text = refused.to_string();
    let rest = text.strip_prefix("ensure_growable ").map(|rest| format!("append to {rest}"));
    let mut text = rest.unwrap_or(text);
    if refused.kind() == ErrorKind::Unsupported {
        // The library's advice is for programs.
        text.truncate(text.find("; use create_growable").unwrap_or(text.len()));
        text += ADVICE;
    }
    let path = path.display();
    // With one file there is no need to name it.
    let place = if args.files.len() > 1 { format!("append {path}: ") } else { String::new() };
    Error::Refused(format!("{place}{text}"))
}
