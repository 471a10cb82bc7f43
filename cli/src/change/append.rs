//! `append`: adds rows from array files to a tensor, in one commit.

use std::path::{Path, PathBuf};

use stridemap::{ErrorKind, StoreOptions, Tensor};

use crate::args::Reading;
use crate::error::{Error, Result};
use crate::input::open_store;
use crate::names::name;
use crate::ui::{counted, message};

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
}

pub(crate) fn run(args: &AppendArgs) -> Result<()> {
    // Refuse unsuitable files before any row is written.
    let sources: Vec<Tensor> =
        args.files.iter().map(|path| only_tensor(path, &args.reading)).collect::<Result<_>>()?;
    let store = open_store(&StoreOptions::new(), &args.store)?;
    let mut txn = store.begin()?;
    let name = name(&args.name, &txn)?;
    let (mut added, mut total) = (0, 0);
    for (path, source) in args.files.iter().zip(&sources) {
        let rows = txn.append(&name, source).map_err(|e| explain(path, args, e))?;
        (added, total) = (added + rows.len() as u64, rows.end);
    }
    let generation = txn.commit()?;
    let added = counted(added, "row");
    message(&format!("appended {added} to {name:?}, which now has {total}: generation {generation}"));
    Ok(())
}

/// Returns the only tensor of a file, backed by the file. Its elements are read when they are appended.
fn only_tensor(path: &Path, reading: &Reading) -> Result<Tensor> {
    let file = reading.options().open(path)?;
    let mut names = file.tensors().map(|tensor| tensor.name);
    match (names.next(), names.count()) {
        (Some(name), 0) => Ok(file.load(&name)?),
        (first, others) => {
            let count = others + usize::from(first.is_some());
            let path = path.display();
            Err(Error::Refused(format!(
                "append {path}: {}, but one is expected; import the file into a new store, and export the tensor with \
                 the rows to a .npy file",
                counted(count as u64, "tensor")
            )))
        }
    }
}

/// Adds context to an error: the file that was refused, and how a command-line user can get a tensor that grows.
fn explain(path: &Path, args: &AppendArgs, refused: stridemap::Error) -> Error {
    let advice = match refused.kind() {
        ErrorKind::NotGrowable => {
            "; or export it to a .npy file and import that file by itself, which gives the tensor its own storage"
        }
        _ => "",
    };
    let path = path.display();
    // With one file there is no need to name it.
    let place = if args.files.len() > 1 { format!("append {path}: ") } else { String::new() };
    Error::Refused(format!("{place}{refused}{advice}"))
}
