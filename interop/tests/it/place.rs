//! A directory with files and a store, and tensors to save there.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use stridemap::{DType, Durability, ErrorKind, Result, Store, StoreOptions, Tensor};
use stridemap_interop::ForeignFile;
use tempfile::TempDir;

/// Writes a file that seems to have been changed long ago. Opening a file that has just changed takes 10 ms: the
/// library waits until a later change would get another time.
pub(crate) fn write_old(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

/// A directory that contains an empty store.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) store: Store,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::new().durability(Durability::Process);
        let store = options.create(dir.path().join("store.smap")).unwrap();
        Place { dir, store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        write_old(&path, bytes);
        path
    }

    /// Returns the names in the directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn import(&self, path: &Path) -> Result<()> {
        let mut txn = self.store.begin()?;
        ForeignFile::open(path)?.import_into(&mut txn, "", |_| ())?;
        txn.commit().map(drop)
    }

    /// Imports a file that must be refused, and returns the message.
    pub(crate) fn refuse(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.file(name, bytes);
        let generation = self.store.generation();
        let error = self.import(&path).expect_err(&String::from_utf8_lossy(bytes));
        assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
        let message = error.to_string();
        assert!(message.starts_with(&format!("read {}: ", path.display())), "{message}");
        assert!(!message.contains('\n') && message.len() < 1000, "{message}");
        self.store.refresh().unwrap();
        assert_eq!(self.store.generation(), generation);
        message
    }
}

/// Returns a tensor whose bytes count up.
pub(crate) fn counted(dtype: DType, size: &[usize]) -> Tensor {
    let count = size.iter().product::<usize>() * dtype.itemsize();
    let bytes: Vec<u8> =
        (0..count).map(|i| if dtype == DType::Bool { i as u8 % 2 } else { i as u8 }).collect();
    Tensor::from_bytes(dtype, size, &bytes).unwrap()
}

/// Returns the dtype, size and row-major bytes of a tensor, which do not depend on its strides in the store.
pub(crate) fn logical(tensor: &Tensor) -> (DType, Vec<usize>, Vec<u8>) {
    (tensor.dtype(), tensor.size().to_vec(), tensor.to_bytes().unwrap())
}

pub(crate) fn views(tensor: &Tensor) -> Vec<(String, Tensor)> {
    [
        ("transposed", tensor.t().unwrap()),
        ("sliced", tensor.slice(1, Some(1), None, 2).unwrap()),
        ("flipped", tensor.flip([0, 1]).unwrap()),
        ("row", tensor.select(0, 2).unwrap()),
        ("element", tensor.select(0, 2).unwrap().select(0, 1).unwrap()),
        ("none", tensor.narrow(0, 1, 0).unwrap()),
    ]
    .map(|(name, view)| (name.to_owned(), view))
    .to_vec()
}
