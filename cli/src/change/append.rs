//! `append`: adds rows from array files to a tensor, in one commit.

use std::io::Write;
use std::path::{Path, PathBuf};

use stridemap::{DType, ErrorKind, Snapshot, Source, StorageInfo, StorageKind, StoreOptions, Tensor};

use super::plan::{described, info};
use super::stdin::PIPE;
use crate::args::{DryRun, Reading};
use crate::error::{Error, Result};
use crate::input::{check_found, check_writable, open_store};
use crate::names::{name, quoted};
use crate::ui::{Progress, counted, message, progress};

/// Append rows from files to a tensor, in one commit: all or none
///
/// Only the new rows are written. The tensor must be contiguous and last in its storage, which is usually the case
/// for a tensor that was imported by itself. Processes that have already loaded the tensor keep seeing its old
/// size.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  stridemap append model.smap log monday.npy tuesday.npy")]
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
        check_writable(&store)?;
        return dry_run(args, &sources, &store.snapshot(), out);
    }
    let bar = progress("append", sources.iter().map(|source| source.nbytes() as u64).sum());
    let mut txn = store.begin()?;
    let name = name(&args.name, &txn)?;
    let (mut added, mut total) = (0, 0);
    for (path, source) in args.files.iter().zip(&sources) {
        let rows = txn.append(&name, &Watched { source, bar: &bar }).map_err(|e| explain(path, args, e))?;
        (added, total) = (added + rows.len() as u64, rows.end);
    }
    let generation = txn.commit()?;
    bar.finish_and_clear();
    let added = counted(added, "row");
    message(&format!("appended {added} to {name:?}, which now has {total}: generation {generation}"));
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

/// Prints what would be appended. This repeats the checks of the library, which writes rows as soon as it is called.
fn dry_run(args: &AppendArgs, sources: &[Tensor], snapshot: &Snapshot, out: &mut impl Write) -> Result<()> {
    let name = name(&args.name, snapshot)?;
    let Some(info) = info(snapshot, &name)? else { return Ok(snapshot.load(&name).map(drop)?) };
    let row = |size: &[usize]| size.split_first().map(|(_, row)| row.to_vec());
    let mut rows = 0;
    for (path, source) in args.files.iter().zip(sources) {
        if source.dtype() != info.header.dtype()
            || row(info.header.size()).is_none()
            || row(source.size()) != row(info.header.size())
        {
            let (dtype, size) = (source.dtype(), source.size());
            let why = format!("{dtype} {size:?} cannot follow {}", described(&name, &info));
            return Err(Error::at("append", path, why));
        }
        rows += source.size().first().copied().unwrap_or_default();
    }
    let storages = snapshot.storages().collect::<stridemap::Result<Vec<_>>>()?;
    let end_bytes =
        (info.header.storage_offset() * info.header.dtype().itemsize() + info.header.nbytes()) as u64;
    let is_last = |storage: &StorageInfo| storage.id == info.storage_id && storage.size_bytes == end_bytes;
    let holder = storages.iter().find(|storage| is_last(storage) && storage.kind == StorageKind::Sealed);
    if rows > 0 && (holder.is_none() || !info.header.is_contiguous()) {
        return Err(Error::Refused(format!(
            "append to {name:?}: it must be contiguous, and last in a sealed storage{ADVICE}"
        )));
    }
    let total = info.header.size().first().copied().unwrap_or_default() + rows;
    let rows = counted(rows as u64, "row");
    Ok(writeln!(out, "would append {rows} to {}, which would then have {total}", quoted(&name))?)
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
    let mut text = refused.to_string();
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
