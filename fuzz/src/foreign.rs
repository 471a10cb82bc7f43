//! Reads a file of another format directly, by import and by adoption, and compares the results.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stridemap::{
    Durability, Error, ErrorKind, ExternalFiles, OnExisting, Result, Store, StoreOptions, Tensor,
};
use stridemap_interop::{ForeignFile, ForeignOptions};

use crate::{elements, scratch, within};

/// The memory for opening a file, in addition to a multiple of its size: buffers, and the window of the decompressor.
const FIXED_BYTES: usize = 256 << 10;

/// The memory that the values of a checkpoint may take, whatever its size.
const UNFOLDED_BYTES: usize = 2 << 20;

/// The memory for headers, as a multiple of the file size.
const FACTOR: usize = 8;

/// A file in memory that is overwritten with every input, and a store to import it into.
pub struct Workplace {
    dir: PathBuf,
    store: Store,
}

type Tensors = BTreeMap<String, (Vec<usize>, Option<Vec<u8>>)>;

impl Workplace {
    /// # Panics
    /// If there is no directory to work in.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let dir = scratch(name).expect("a directory to work in");
        let options = StoreOptions::new().durability(Durability::Process).external(ExternalFiles::Anywhere);
        let store = options.create(dir.join("store.smap")).expect("a store to import into");
        Workplace { dir, store }
    }

    /// Writes a file beside the one that is read.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, bytes).expect("a file to read");
        // The library would wait before it uses a file with a recent time.
        let file = File::options().write(true).open(&path).expect("a file to read");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("a file of another time");
        path
    }

    /// Reads the bytes as a file of another format in every way, and returns whether it could be read.
    ///
    /// # Panics
    /// If the results differ, if reading takes too much memory, or if an error is not typed.
    pub fn read(&self, bytes: &[u8]) -> bool {
        let path = self.put("input.bin", bytes);
        let limit_bytes = FACTOR * bytes.len() + FIXED_BYTES + UNFOLDED_BYTES;
        within(limit_bytes, || drop(ForeignOptions::new().skip_unreadable(true).open(&path)));
        let read = within(limit_bytes, || read(&path, bytes.len()));
        let read = match read {
            Ok(read) => read,
            Err(e) => {
                check_typed(&e);
                return false;
            }
        };
        match self.import(&path, bytes.len()) {
            Ok(imported) => assert!(read == imported, "read {read:?}, imported {imported:?}"),
            // An import reads everything, so it finds damage that a partial read misses.
            Err(e) => check_typed(&e),
        }
        match self.adopt(&path, bytes.len()) {
            Ok(Some(adopted)) => assert!(read == adopted, "read {read:?}, adopted {adopted:?}"),
            Ok(None) => {}
            Err(e) => check_typed(&e),
        }
        true
    }

    fn import(&self, path: &Path, file_bytes: usize) -> Result<Tensors> {
        let file = ForeignFile::open(path)?;
        let mut txn = self.store.begin()?;
        for name in self.store.names()? {
            txn.remove(&name)?;
        }
        txn.on_existing(OnExisting::Refuse);
        file.import_into(&mut txn, "in.", |_| ())?;
        txn.commit()?;
        self.named(&file, file_bytes)
    }

    fn adopt(&self, path: &Path, file_bytes: usize) -> Result<Option<Tensors>> {
        let file = ForeignFile::open(path)?;
        if file.check_adoptable().is_err() {
            return Ok(None);
        }
        let mut txn = self.store.begin()?;
        for name in self.store.names()? {
            txn.remove(&name)?;
        }
        file.adopt_into(&mut txn, "in.")?;
        txn.commit()?;
        self.named(&file, file_bytes).map(Some)
    }

    fn named(&self, file: &ForeignFile, file_bytes: usize) -> Result<Tensors> {
        let tensor = |name: String| {
            let loaded = self.store.load(&format!("in.{name}"))?;
            Ok((name, content(&loaded, file_bytes)?))
        };
        file.tensors().map(|info| tensor(info.name)).collect()
    }
}

fn read(path: &Path, file_bytes: usize) -> Result<Tensors> {
    let file = ForeignFile::open(path)?;
    let count = file.tensors().count() as u64;
    for storage in file.storages() {
        assert!(storage.tensor_count <= count && storage.id > 0);
    }
    let mut tensors = Tensors::new();
    for info in file.tensors() {
        let tensor = file.load(&info.name)?;
        assert_eq!((tensor.size(), tensor.stride()), (info.header.size(), info.header.stride()));
        tensors.insert(info.name, content(&tensor, file_bytes)?);
    }
    assert_eq!(tensors.len() as u64, count, "a name appears twice");
    Ok(tensors)
}

/// Returns the size and the elements of a tensor. The elements of a tensor that repeats a few bytes many times are not
/// read.
fn content(tensor: &Tensor, file_bytes: usize) -> Result<(Vec<usize>, Option<Vec<u8>>)> {
    let is_short = tensor.nbytes() <= file_bytes / 2;
    let content = if is_short { Some(elements(tensor)?) } else { None };
    let _ = tensor.overlaps_itself();
    Ok((tensor.size().to_vec(), content))
}

fn check_typed(e: &Error) {
    let line = e.to_string();
    let is_typed = matches!(
        e.kind(),
        ErrorKind::BadFile
            | ErrorKind::LimitExceeded
            | ErrorKind::OutOfMemory
            | ErrorKind::InvalidArgument
            | ErrorKind::Io
    );
    assert!(is_typed && !line.contains('\n') && line.len() < 8 << 10, "{:?}: {line}", e.kind());
}
