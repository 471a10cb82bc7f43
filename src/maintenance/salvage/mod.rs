//! Salvage: copies what is whole in a damaged store to a new store, and reports the rest. The damaged store is only
//! read.

mod keep;
mod newest;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stridemap_format::{RecordKind, TableRef, TensorRecord};

use super::copy::{Copied, Done, Original};
use super::external_check::detail_of;
use super::verify::Survey;
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result, one_line};
use crate::generation::{Generation, OpenStore, Options, StoreDir, Table, check_free, open_dirs};
use crate::storage::Unreadable;
use keep::keep;
use newest::{Newest, newest, readable};

/// What a salvage copied, and what it lost. See [`StoreOptions::salvage`](crate::StoreOptions::salvage).
#[must_use = "what is lost is reported here, and is not an error"]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Salvaged {
    /// The generation of the damaged store that was read.
    pub generation: u64,
    /// What was copied. If nothing was to be made, only the number of tensors that can be.
    pub copied: Copied,
    /// What is lost: tensors and metadata.
    pub losses: Vec<Loss>,
    /// The tags of the damaged store. A salvage copies one generation, so neither a tag is copied, nor what only tagged
    /// generations have. Whether these are whole is not checked: to keep one,
    /// [copy](crate::Snapshot::copy_to) what [`Store::at`](crate::Store::at) returns.
    pub tags: Vec<String>,
    /// The tensors in the new store whose elements may be a mix of old and new ones: a process or thread ended while it
    /// was changing their storage, or the file is too short to say so. They are copied as they are, and marked, so they
    /// must be read through [`allow_interrupted`](crate::Tensor::allow_interrupted) in the new store, too.
    pub interrupted: Vec<String>,
}

/// Something that a salvage could not copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The tensor that is lost, or that has lost its last rows. `None` if metadata is lost: which tensors it described is not
    /// known.
    pub name: Option<String>,
    /// The file that is damaged, or that could not be read or opened.
    pub path: PathBuf,
    /// What is wrong with it, or `could not be read: ` and the error of the disk: then the bytes may be whole.
    pub reason: String,
    /// The bytes of the tensor's elements that are lost.
    pub lost_bytes: u64,
}

impl Loss {
    fn of_metadata(path: PathBuf, reason: String) -> Self {
        Loss { name: None, path, reason, lost_bytes: 0 }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { name, path, reason, lost_bytes } = self;
        let what = name.as_ref().map(|name| format!("{name:?}: {lost_bytes} bytes: ")).unwrap_or_default();
        f.write_str(&one_line(&format!("{what}{}: {reason}", path.display())))
    }
}

/// Returns an error's message without the path before it.
fn reason_of(error: &Error) -> String {
    match (error.format_error(), error.io_error()) {
        (Some(broken), _) => format!("{} ({})", broken.detail(), broken.rule()),
        (None, Some(cause)) => format!("could not be read: {cause}"),
        (None, None) => error.to_string(),
    }
}

/// Salvages the store at `path` into a new one at `new`, or only reports what would be lost if that is `None`.
pub(crate) fn salvage(
    disk: &Arc<dyn Disk>,
    path: &Path,
    new: Option<&Path>,
    options: Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Salvaged> {
    let (held, paths) = open_dirs(disk, path)?;
    if let Some(new) = new {
        check_free(&**disk, new)?;
        check_outside(&**disk, path, new)?;
    }
    let mut losses = Vec::new();
    let source = newest(&*held, &paths, &mut losses)?;
    let (uuid, number) = (source.manifest.uuid, source.manifest.generation);
    let dir = StoreDir::new(held, paths, uuid);
    let store = OpenStore::at(dir, options, Arc::new(Generation::stand_in(uuid, number)));
    let kept = keep(&store, &source, &mut losses, progress)?;
    let tags = tags_of(&store, &source, &mut losses)?;
    let copied = Copied { tensor_count: kept.tensors.len() as u64, ..Copied::default() };
    let mut done = Done { copied, interrupted: kept.interrupted, ..Done::default() };
    let mut manifest = source.manifest;
    manifest.table = None;
    manifest.storages = kept.storages.into_iter().map(|(id, record)| (id, Some(record))).collect();
    manifest.tensors = kept.tensors.into_iter().map(|(name, record)| (name, Some(record))).collect();
    manifest.history = None;
    let generation = &Generation::new(manifest, None, None, source.pin, true);
    if let Some(new) = new {
        let damaged = kept.damaged;
        let original =
            Original { action: "salvage", disk, store: &store, generation, damaged, is_salvage: true };
        done = original.copy(new, progress)?;
    }
    losses.extend(refused_losses(&store, generation, &done));
    let on_interrupted = |(name, record): (&String, &Option<TensorRecord>)| {
        done.interrupted.contains(&record.as_ref()?.storage_id).then(|| name.clone())
    };
    let interrupted = generation.manifest().tensors.iter().filter_map(on_interrupted).collect();
    Ok(Salvaged { generation: number, copied: done.copied, losses, tags, interrupted })
}

/// Returns the losses of tensors in external files that the new store may not use.
fn refused_losses(store: &OpenStore, generation: &Generation, done: &Done) -> Vec<Loss> {
    let manifest = generation.manifest();
    let loss = |(name, record): (&String, &Option<TensorRecord>)| {
        let record = record.as_ref()?;
        let refusal = done.refused.get(&record.storage_id)?;
        let RecordKind::External(external) = &manifest.storages.get(&record.storage_id)?.as_ref()?.kind
        else {
            return None;
        };
        let path = store.externals.path(external);
        let why = detail_of(&path, refusal);
        let reason = match refusal.kind() {
            ErrorKind::ExternalChanged => why,
            _ => format!(
                "the new store may not use it: {why}; a new store in a directory that contains the file may"
            ),
        };
        Some(Loss { name: Some(name.clone()), path, reason, lost_bytes: record.header.nbytes() as u64 })
    };
    manifest.tensors.iter().filter_map(loss).collect()
}

/// Returns the tags, and adds to the losses that some are not known.
fn tags_of(store: &OpenStore, source: &Newest, losses: &mut Vec<Loss>) -> Result<Vec<String>> {
    let (paths, manifest) = (&store.paths, &source.manifest);
    if source.is_kept {
        let reason = "the names of the tags are lost, and only one of the tagged generations is copied";
        losses.push(Loss::of_metadata(paths.generations_dir(), reason.to_owned()));
        return Ok(Vec::new());
    }
    let unknown = |history: TableRef, why: String| {
        Loss::of_metadata(
            paths.history(history.generation),
            format!("{why}; tags that it lists are not known"),
        )
    };
    let history = match (readable(Table::of_history(&*store.disk, paths, manifest))?, manifest.history) {
        (Err(e), Some(history)) => {
            losses.push(unknown(history, reason_of(&e)));
            None
        }
        (history, _) => history?,
    };
    let survey = Survey::of(manifest, history.as_ref(), Unreadable::Skip)?;
    for (_, e) in survey.damage.errors() {
        losses.extend(manifest.history.map(|history| unknown(history, reason_of(&e))));
    }
    Ok(survey.tags.into_keys().collect())
}

/// Refuses a new store inside the damaged one, which would change it.
fn check_outside(disk: &dyn Disk, store: &Path, new: &Path) -> Result<()> {
    let id_of = |dir: &Path| disk.stat(dir).ok().map(|stat| stat.id());
    let own = id_of(&store.join("."));
    let mut dir = crate::disk::dir_of(new).join(".");
    let mut id = id_of(&dir);
    while id.is_some() {
        if id == own {
            let message = format!(
                "salvage {} to {}: the new store would be inside the damaged one, which is not changed; choose a path \
                 outside",
                store.display(),
                new.display()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        dir.push("..");
        let above = id_of(&dir);
        // The root is its own parent.
        id = above.filter(|_| above != id);
    }
    Ok(())
}
