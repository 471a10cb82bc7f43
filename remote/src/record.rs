//! What a store remembers of a remote: the generation that both have.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stridemap::replica::GenerationId;
use stridemap::{Error, ErrorKind, Result};

/// A generation that both have, and the HEAD of the remote when it had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Common {
    /// The bytes of HEAD, in hexadecimal.
    head: String,
    generation: u64,
    /// The digest of the generation, in hexadecimal.
    digest: String,
}

impl Common {
    pub(crate) fn new(head: &[u8], id: GenerationId) -> Self {
        Common { head: hex(head), generation: id.number, digest: hex(&id.digest) }
    }

    pub(crate) fn is_at(&self, head: &[u8]) -> bool {
        self.head == hex(head)
    }

    /// Returns the generation, or `None` if the file was changed by hand.
    pub(crate) fn id(&self) -> Option<GenerationId> {
        let digest = bytes_of(&self.digest)?.try_into().ok()?;
        Some(GenerationId { number: self.generation, digest })
    }

    /// Returns the bytes of HEAD.
    pub(crate) fn head(&self) -> Option<Vec<u8>> {
        bytes_of(&self.head)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The remote, for people who read the file.
    remote: String,
    /// What both had after the last push or pull.
    pub(crate) common: Option<Common>,
    /// What both will have after the push that has begun. It may have been killed after it succeeded: then HEAD says so.
    pub(crate) begun_push: Option<Common>,
    /// What both will have after the pull that has begun. It may have been killed after it succeeded: then the store is at
    /// this generation. This says nothing about pushes, because HEAD was the remote's before the pull began.
    pub(crate) begun_pull: Option<Common>,
    /// Whether a push has put objects and did not end, so that some objects may be there already.
    pub(crate) has_unfinished_push: bool,
}

/// The record of a remote in a store.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    /// Of the pushes and pulls between the two, one runs at a time. A plan takes no lock, and writes nothing.
    lock: Option<File>,
    pub(crate) state: State,
}

impl Record {
    /// Opens the record of a remote in the store at `store`.
    ///
    /// # Errors
    /// `Busy` if a push to that remote, or a pull from it, is running; `Io`.
    pub(crate) fn open(store: &Path, location: &str) -> Result<Self> {
        let path = path_of(store, location);
        let failed = |e| unopened(&path, e);
        let lock_path = path.with_extension("lock");
        let lock =
            File::options().write(true).create(true).truncate(false).open(lock_path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let message = format!(
                    "{}: another process pushes to {location} or pulls from it; try again when it has ended",
                    store.display()
                );
                return Err(Error::new(ErrorKind::Busy, message));
            }
            Err(fs::TryLockError::Error(e)) => return Err(failed(e)),
        }
        let state = read(&path, location)?;
        Ok(Record { path, lock: Some(lock), state })
    }

    /// Reads the record for a plan, which changes no file.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn for_plan(store: &Path, location: &str) -> Result<Self> {
        let path = path_of(store, location);
        let state = read(&path, location)?;
        Ok(Record { path, lock: None, state })
    }

    pub(crate) fn is_for_plan(&self) -> bool {
        self.lock.is_none()
    }

    /// Writes the state, durably: an older one could make a push build on a generation that the store has left.
    pub(crate) fn save(&mut self) -> Result<()> {
        if self.is_for_plan() {
            return Ok(());
        }
        let write = || -> io::Result<()> {
            let dir = self.path.parent().unwrap_or(Path::new("."));
            let mut file = tempfile::Builder::new().prefix(PREFIX).suffix(".new").tempfile_in(dir)?;
            let mut text = serde_json::to_string_pretty(&self.state)?;
            text.push('\n');
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            File::open(dir)?.sync_all()
        };
        write().map_err(|e| Error::io("write the record of a remote", &self.path, e))
    }

    /// Finds out whether a push or pull that was killed had succeeded, and then notes that. `head` is that of the remote,
    /// and `local` the newest generation of the store.
    pub(crate) fn settle_begun(&mut self, head: &[u8], local: GenerationId) -> Result<()> {
        let pushed = self.state.begun_push.clone().filter(|begun| begun.is_at(head));
        let pulled = self.state.begun_pull.clone().filter(|begun| begun.id() == Some(local));
        pushed.or(pulled).map_or(Ok(()), |done| self.settle(done))
    }

    /// Notes that both have a generation.
    pub(crate) fn settle(&mut self, common: Common) -> Result<()> {
        self.state = State {
            common: Some(common),
            begun_push: None,
            begun_pull: None,
            has_unfinished_push: false,
            remote: std::mem::take(&mut self.state.remote),
        };
        self.save()
    }
}

/// The beginning of the name of a record.
const PREFIX: &str = "REMOTE-";

/// Returns the URLs to which the store at a path was pushed, or from which it was pulled, as far as its records can be read.
#[doc(hidden)]
pub fn recorded_remotes(store: &Path) -> Vec<String> {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    let is_record = |name: &str| name.starts_with(PREFIX) && !name.contains('.');
    let records = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_record));
    let states =
        records.filter_map(|record| serde_json::from_slice::<State>(&fs::read(record.path()).ok()?).ok());
    let mut urls: Vec<String> =
        states.filter(|state| state.common.is_some()).map(|state| state.remote).collect();
    urls.sort();
    urls
}

fn path_of(store: &Path, location: &str) -> PathBuf {
    let name: String = hex(blake3::hash(location.as_bytes()).as_bytes()).chars().take(16).collect();
    store.join(format!("{PREFIX}{name}"))
}

fn unopened(path: &Path, e: io::Error) -> Error {
    Error::io("open the record of a remote", path, e)
}

fn read(path: &Path, location: &str) -> Result<State> {
    let state: State = match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| {
            let message = format!(
                "{}: the record of {location} cannot be understood: {e}; delete it, and push or pull again",
                path.display()
            );
            Error::new(ErrorKind::BadFile, message)
        })?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => State::default(),
        Err(e) => return Err(unopened(path, e)),
    };
    Ok(State { remote: location.to_owned(), ..state })
}
