use std::path::{Path, PathBuf};

use super::handle::Store;
use super::options::StoreOptions;
use crate::commit::{self, Finding, Repair, RepairMode, Verification};
use crate::error::Result;

impl Store {
    /// Reads everything in the generation that this handle is on, metadata and elements, and gives what breaks a rule
    /// of the format, with the names of the tensors that each finding affects: nothing, for a whole store. `progress` is
    /// called with the bytes of elements read since the last call, on this thread; several others read, some MiB at a time.
    ///
    /// External files have no digests: whether each is the one that was adopted is looked at, its elements are not read. One
    /// that this handle may not open is left alone, and [`unchecked_files`](Self::unchecked_files) gives it. Nor have
    /// mutable and live storages digests, for they change: of these the file is looked at.
    ///
    /// [`StoreOptions::verify`] does the same to a store that is too damaged to be opened.
    ///
    /// # Errors
    /// `Io` for metadata that cannot be read, and `Busy` as in [`open`](Self::open).
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Vec<Finding>> {
        let history = &self.loader.history;
        history.check_process()?;
        let verified = commit::verify(history, self.snapshot().inner(), &mut |_| (), &mut progress)?;
        Ok(verified.findings)
    }

    /// Verifies some tensors alone: reads the entries that lead to each, all digests of its storage, some 16 bytes for each
    /// MiB, and the chunks of 1 MiB that its elements are in. Gives what is wrong with them: nothing, for whole ones.
    ///
    /// A finding on the digests of a storage may be about another tensor of it: only [`verify`](Self::verify) reads enough
    /// to say.
    ///
    /// # Errors
    /// `NameNotFound`; `ExternalRefused` for one on a file that this handle may not open; `Io`.
    pub fn verify_tensors(&self, names: &[&str], mut progress: impl FnMut(u64)) -> Result<Vec<Finding>> {
        let history = &self.loader.history;
        history.check_process()?;
        commit::verify_tensors(history, self.snapshot().inner(), names, &mut progress)
    }

    /// The external files that tensors stand on and this handle [may not open](crate::StoreOptions::external), which
    /// [`verify`](Self::verify) therefore leaves alone.
    ///
    /// # Errors
    /// Those of reading the metadata.
    pub fn unchecked_files(&self) -> Result<Vec<PathBuf>> {
        self.loader.history.check_process()?;
        commit::unopenable(&self.loader.history, self.snapshot().inner())
    }
}

impl StoreOptions {
    /// As [`Store::verify`], of the newest generation of the store in a directory: one that is too damaged to be opened has
    /// findings, too. Gives also the files that nobody needs, and how much was read. `begin` is called with the bytes of
    /// elements that there are to read, and `progress` with those read since the last call.
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`, `Busy`, `Io`: what is there may be no store, or cannot be read.
    pub fn verify(
        &self,
        path: impl AsRef<Path>,
        mut begin: impl FnMut(u64),
        mut progress: impl FnMut(u64),
    ) -> Result<Verification> {
        commit::verify_path(&self.disk, path.as_ref(), self.options, &mut begin, &mut progress)
    }

    /// Says what a damaged store needs to be usable again, and what of it would be given up; changes nothing. Nothing at all,
    /// for a whole store. `progress` is called with the bytes of elements read since the last call.
    ///
    /// # Errors
    /// `NotFound`, `NotAStore`; `UnsupportedVersion` for a store of a newer version; `Corrupt` when neither a manifest nor a
    /// table can be read, or a directory of the store is none; `LimitExceeded` for a file of a generation that no store comes
    /// to; `Io`.
    pub fn plan_repair(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Repair> {
        commit::repair(&self.disk, path.as_ref(), self.options, RepairMode::Plan, &mut progress)
    }

    /// Makes a damaged store usable again, and says what it did. Then [`verify`](Self::verify) finds nothing, but for files
    /// that are not the store's, and the next commit succeeds.
    ///
    /// - FORMAT and LOCK are made anew. A manifest, and an entry of a table, that one flipped bit makes wrong is put right:
    ///   its checksum confirms it. So are the header of a table, and wrong or missing chunk digests that those of the record
    ///   confirm.
    /// - When the newest manifest, or its table, cannot be read, the store steps back to the newest older generation whose
    ///   can, which is there while a reader is on it or was until now; else to what the manifest says alone, or a table.
    /// - A tensor is given up when its header is lost, or when it reaches a chunk that is damaged or missing. The others
    ///   on a damaged storage are copied into a new one, and keep names, sizes and elements; strides and offsets may change. A
    ///   mutable or live storage that became short keeps the tensors that are inside what is left.
    ///
    /// What it removes or replaces is moved to the directory `lost+found` of the store, and stays there. It is made under the
    /// writers' lock, and durable when it returns, whatever the [`Durability`](crate::Durability). Cut short anywhere, even by
    /// a power cut, the store is as before, or repaired, or another repair makes it so.
    ///
    /// It keeps all headers in memory, and needs room on the disk for what is copied.
    ///
    /// # Errors
    /// Those of [`plan_repair`](Self::plan_repair); `Busy` while another writer is at work, or while a reader needs what would
    /// be moved; `ReadOnly`, `Io`. Until the new generation is published the content is as it was.
    pub fn repair(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64)) -> Result<Repair> {
        commit::repair(&self.disk, path.as_ref(), self.options, RepairMode::Apply, &mut progress)
    }
}
