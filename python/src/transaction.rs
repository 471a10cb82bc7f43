//! Changes that one commit makes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use self_cell::self_cell;
use stridemap::import::{ExternalFile, StorageKey};
use stridemap::{Error, ErrorKind, Header, OnExisting, Source as _, Store, Transaction};

use crate::error::Result;
use crate::interrupt::detach;
use crate::origin::Origin;
use crate::snapshot::Snapshot;
use crate::source::{Elements, dtype, dtype_of};
use crate::staged_file::StagedFile;
use crate::store::kind_of;
use crate::tensor::Tensor;

type Open<'a> = Option<Transaction<'a>>;

/// How many bytes of a file are copied at a time.
const PIECE_BYTES: usize = 8 << 20;

self_cell!(
    struct OwnedTransaction {
        owner: Store,
        #[not_covariant]
        dependent: Open,
    }
);

/// A transaction, until it is committed or aborted.
#[pyclass(frozen)]
pub(crate) struct TransactionHandle {
    transaction: Mutex<OwnedTransaction>,
    keys: Mutex<Vec<StorageKey>>,
    /// The origin of the tensors that the transaction loads, except for their names.
    origin: Origin,
}

impl TransactionHandle {
    pub(crate) fn begin(store: Store, origin: Origin, exclusive: bool) -> Result<TransactionHandle> {
        let begin = if exclusive { Store::begin_exclusive } else { Store::begin };
        let transaction = OwnedTransaction::try_new(store, |store| begin(store).map(Some))?;
        Ok(TransactionHandle { transaction: Mutex::new(transaction), keys: Mutex::default(), origin })
    }

    /// Acts without the interpreter's lock, so that other threads run while bytes are written.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Transaction<'_>) -> stridemap::Result<R> + Send,
    ) -> Result<R> {
        detach(py, || self.act(act))
    }

    fn act<R>(&self, act: impl FnOnce(&mut Transaction<'_>) -> stridemap::Result<R>) -> Result<R> {
        let mut cell = self.transaction.lock().unwrap_or_else(PoisonError::into_inner);
        cell.with_dependent_mut(|_, transaction| match transaction {
            Some(transaction) => Ok(act(transaction)?),
            None => Err(ended()),
        })
    }

    fn key(&self, index: usize) -> Result<StorageKey> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.get(index).copied().ok_or_else(|| PyValueError::new_err("no such storage was staged").into())
    }

    fn add_key(&self, key: StorageKey) -> usize {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.push(key);
        keys.len() - 1
    }
}

fn ended() -> crate::error::Error {
    PyValueError::new_err("the transaction has ended: it was committed or aborted; begin another").into()
}

#[pymethods]
impl TransactionHandle {
    /// Sets whether later changes may replace existing names.
    fn on_existing(&self, py: Python<'_>, replace: bool) -> Result<()> {
        let on_existing = if replace { OnExisting::Replace } else { OnExisting::Refuse };
        self.with(py, |txn| {
            txn.on_existing(on_existing);
            Ok(())
        })
    }

    fn ignore_reads(&self, py: Python<'_>) -> Result<()> {
        self.with(py, |txn| {
            txn.ignore_reads();
            Ok(())
        })
    }

    /// Sets what the user says about the generation that the commit publishes.
    fn message(&self, py: Python<'_>, message: &str) -> Result<()> {
        self.with(py, |txn| {
            txn.message(message);
            Ok(())
        })
    }

    /// Tags the generation that the commit publishes, or that of a snapshot.
    #[pyo3(signature = (name, snapshot = None))]
    fn tag(&self, py: Python<'_>, name: &str, snapshot: Option<&Snapshot>) -> Result<()> {
        self.with(py, |txn| match snapshot {
            Some(earlier) => txn.tag_snapshot(name, &earlier.snapshot),
            None => txn.tag(name),
        })
    }

    /// Tags the generation before the one that the commit publishes.
    fn tag_previous(&self, py: Python<'_>, name: &str) -> Result<()> {
        self.with(py, |txn| txn.tag_previous(name))
    }

    fn untag(&self, py: Python<'_>, name: &str) -> Result<()> {
        self.with(py, |txn| txn.untag(name))
    }

    fn restore(&self, py: Python<'_>, snapshot: &Snapshot, prefix: &str) -> Result<()> {
        self.with(py, |txn| txn.restore(&snapshot.snapshot, prefix))
    }

    /// Returns the names that begin with `prefix`.
    #[pyo3(signature = (prefix = ""))]
    fn names(&self, py: Python<'_>, prefix: &str) -> Result<Vec<String>> {
        self.with(py, |txn| match prefix {
            "" => txn.names(),
            _ => txn.iter_tensors(prefix)?.map(|info| Ok(info?.name)).collect(),
        })
    }

    fn attributes(&self, py: Python<'_>, scope: &str) -> Result<BTreeMap<String, String>> {
        self.with(py, |txn| Ok(txn.attributes(scope)))
    }

    fn contains(&self, py: Python<'_>, name: &str) -> Result<bool> {
        self.with(py, |txn| txn.contains(name))
    }

    fn has_prefix(&self, py: Python<'_>, prefix: &str) -> Result<bool> {
        self.with(py, |txn| Ok(txn.iter_tensors(prefix)?.next().transpose()?.is_some()))
    }

    /// Loads a tensor. Returns `None` if there is none, without the time that the error of `load` takes.
    fn find(&self, py: Python<'_>, name: &str) -> Result<Option<Tensor>> {
        match self.contains(py, name)? {
            true => Ok(Some(self.load(py, name)?)),
            false => Ok(None),
        }
    }

    /// Refuses a generation that was not the newest when the transaction began.
    fn expect(&self, py: Python<'_>, generation: u64) -> Result<()> {
        self.with(py, |txn| match txn.generation() {
            newest if newest == generation => Ok(()),
            newest => {
                let message = format!(
                    "transaction: generation {generation} is expected, and {newest} is the newest; refresh the store, and read again"
                );
                Err(Error::new(ErrorKind::Conflict, message))
            }
        })
    }

    fn load(&self, py: Python<'_>, name: &str) -> Result<Tensor> {
        let inner = self.with(py, |txn| txn.load(name))?;
        let origin = Origin { name: name.to_owned(), ..self.origin.clone() };
        Ok(Tensor { inner, origin: Some(Arc::new(origin)) }.with_origin_if_stored())
    }

    fn save(&self, py: Python<'_>, name: &str, elements: Elements<'_>, kind: &str) -> Result<()> {
        let (source, kind) = (elements.source()?, kind_of(kind)?);
        self.with(py, |txn| txn.save_as(name, &source, kind))
    }

    /// Saves a copy of the elements of a tensor.
    fn save_tensor(&self, py: Python<'_>, name: &str, tensor: &Tensor, kind: &str) -> Result<()> {
        let kind = kind_of(kind)?;
        tensor.detach(py, || self.act(|txn| txn.save_as(name, &tensor.inner, kind)))
    }

    fn save_view(&self, py: Python<'_>, name: &str, tensor: &Tensor) -> Result<()> {
        self.with(py, |txn| txn.save_view(name, &tensor.inner))
    }

    fn create_tensor(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: &Bound<'_, PyAny>,
        size: Vec<usize>,
        kind: &str,
    ) -> Result<()> {
        let (dtype, kind) = (dtype_of(dtype)?, kind_of(kind)?);
        self.with(py, |txn| txn.create_tensor(name, dtype, &size, kind).map(drop))
    }

    fn create_growable(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: &Bound<'_, PyAny>,
        size: Vec<usize>,
        capacity: usize,
    ) -> Result<()> {
        let dtype = dtype_of(dtype)?;
        self.with(py, |txn| txn.create_growable(name, dtype, &size, capacity))
    }

    fn append(&self, py: Python<'_>, name: &str, elements: Elements<'_>) -> Result<(usize, usize)> {
        let source = elements.source()?;
        let rows = self.with(py, |txn| txn.append(name, &source))?;
        Ok((rows.start, rows.end))
    }

    fn remove(&self, py: Python<'_>, name: &str) -> Result<()> {
        self.with(py, |txn| txn.remove(name))
    }

    fn rename(&self, py: Python<'_>, name: &str, new_name: &str) -> Result<()> {
        self.with(py, |txn| txn.rename(name, new_name))
    }

    fn set_attribute(&self, py: Python<'_>, scope: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.with(py, |txn| match value {
            Some(value) => txn.set_attribute(scope, key, value),
            None => txn.remove_attribute(scope, key),
        })
    }

    /// Writes bytes to a new storage. Returns its number, for `save_header`.
    fn stage(&self, py: Python<'_>, elements: Elements<'_>) -> Result<usize> {
        let (source, nbytes) = (elements.source()?, elements.nbytes() as u64);
        let key = self.with(py, |txn| txn.stage(Some(nbytes), |sink| source.write_to(sink)))?;
        Ok(self.add_key(key))
    }

    /// Stages a file that processes have filled. Returns the number of its storage.
    fn stage_file(&self, py: Python<'_>, file: &StagedFile) -> Result<usize> {
        let file = file.take()?;
        let key = self.with(py, |txn| txn.stage_file(file))?;
        Ok(self.add_key(key))
    }

    /// Copies a file to a new storage, sharing its blocks on disk where the file system can. Returns its number.
    fn copy_file(&self, py: Python<'_>, path: PathBuf) -> Result<usize> {
        let key = self.with(py, |txn| {
            let file = ExternalFile::open(&path)?;
            match txn.stage_shared(&file, &mut |_| ())? {
                Some(key) => Ok(key),
                // Not by its path, where another file may be by now. Each read finds out whether the file has changed.
                None => txn.stage(Some(file.size_bytes()), |sink| {
                    let mut buffer = vec![0; PIECE_BYTES];
                    for start in (0..file.size_bytes()).step_by(PIECE_BYTES) {
                        let piece_bytes = (file.size_bytes() - start).min(PIECE_BYTES as u64) as usize;
                        file.read_exact_at(&mut buffer[..piece_bytes], start)?;
                        sink(&buffer[..piece_bytes])?;
                    }
                    Ok(())
                }),
            }
        })?;
        Ok(self.add_key(key))
    }

    /// Saves a header, given as its dtype, size, stride and storage offset, over a storage that this transaction has staged.
    fn save_header(
        &self,
        py: Python<'_>,
        name: &str,
        header: (String, Vec<usize>, Vec<isize>, usize),
        storage: usize,
    ) -> Result<()> {
        let (key, (dtype_name, size, stride, storage_offset)) = (self.key(storage)?, header);
        let header = Header::new(dtype(&dtype_name)?, size, stride, storage_offset);
        let header = header.map_err(|e| Error::refused(format_args!("save {name:?}"), e))?;
        self.with(py, |txn| txn.save_header(name, &header, key))
    }

    /// Makes all changes in one commit. Returns the new generation.
    fn commit(&self, py: Python<'_>) -> Result<u64> {
        detach(py, || {
            let mut cell = self.transaction.lock().unwrap_or_else(PoisonError::into_inner);
            cell.with_dependent_mut(|_, transaction| match transaction.take() {
                Some(transaction) => Ok(transaction.commit()?),
                None => Err(ended()),
            })
        })
    }

    /// Discards all changes.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| {
            let mut cell = self.transaction.lock().unwrap_or_else(PoisonError::into_inner);
            cell.with_dependent_mut(|_, transaction| *transaction = None);
        });
    }
}
