//! External files, adopted in place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use stridemap::{ErrorKind, ExternalFiles, OnExisting, StorageKind, Store, StoreOptions, Tensor};
use stridemap_interop::{ForeignFile, safetensors};

use crate::harness::assert_refused;

pub(crate) mod adopting;
mod changed;
mod hostile;
mod mapped;

/// A directory with a file of two tensors, and a store that has adopted it.
pub(crate) struct Adopted {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) file: PathBuf,
    pub(crate) path: PathBuf,
}

/// Returns the elements of `weight`, whose size is 3, 4. `bias` is its first row, as float64.
pub(crate) fn weight() -> Vec<f32> {
    (0..12u8).map(f32::from).collect()
}

pub(crate) fn write_model(path: &Path) {
    let bias: Vec<f64> = (0..4u8).map(f64::from).collect();
    let tensors = [
        ("weight".to_owned(), Tensor::from_vec(weight(), &[3, 4]).unwrap()),
        ("bias".to_owned(), Tensor::from_vec(bias, &[4]).unwrap()),
    ];
    let text = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::Export::new().metadata(&text).write(path, &tensors, |_| ()).unwrap();
}

pub(crate) fn external_beside() -> StoreOptions {
    StoreOptions::new().external(ExternalFiles::Beside)
}

pub(crate) fn external_anywhere() -> StoreOptions {
    StoreOptions::new().external(ExternalFiles::Anywhere)
}

/// Opens a mapped store. Only these tests write its files and the external ones.
pub(crate) fn mapped(options: &StoreOptions, path: &Path) -> Store {
    // SAFETY: only the test writes these files, and not while they are mapped.
    #[expect(unsafe_code, reason = "the test keeps the contract of open_mapped")]
    unsafe { options.open_mapped(path) }.unwrap()
}

impl Adopted {
    pub(crate) fn new() -> Self {
        let dir = crate::support::temporary();
        let (file, path) = (dir.path().join("model.safetensors"), dir.path().join("model.smap"));
        write_model(&file);
        stridemap_interop::adopt(&external_beside().create(&path).unwrap(), &file, "").unwrap();
        Adopted { dir, file, path }
    }

    pub(crate) fn open(&self) -> Store {
        external_beside().open(&self.path).unwrap()
    }

    pub(crate) fn load(&self) -> stridemap::Result<Vec<f32>> {
        self.open().load("weight")?.read()
    }

    /// Asserts that both kinds of handle refuse to load the elements, for this reason.
    pub(crate) fn assert_changed(&self, parts: &[&str]) {
        for store in [self.open(), mapped(&external_beside(), &self.path)] {
            assert_refused(store.load("weight"), ErrorKind::ExternalChanged, parts);
        }
    }
}

pub(crate) fn set_mtime(path: &Path, back: Duration) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now().checked_sub(back).unwrap()).unwrap();
}

#[test]
fn adopted_tensors_are_headers_over_the_bytes_of_the_file() {
    let adopted = Adopted::new();
    assert_eq!(adopted.load().unwrap(), weight());
    let store = adopted.open();
    assert_eq!(store.attributes("")["format"], "pt");
    assert_eq!(store.load("bias").unwrap().read::<f64>().unwrap(), [0., 1., 2., 3.]);
    let storages: Vec<_> = store.snapshot().storages().map(Result::unwrap).collect();
    assert_eq!(storages.len(), 1, "one storage for one run of bytes: {storages:?}");
    assert_eq!(storages[0].file, adopted.file);
    assert_eq!((storages[0].kind, storages[0].tensor_count), (StorageKind::External, 2));
    assert_eq!(storages[0].size_bytes, 12 * 4 + 4 * 8);
    let own: Vec<_> = fs::read_dir(adopted.path.join("storages")).unwrap().collect();
    assert!(own.is_empty(), "{own:?}");
    assert!(store.verify(|_| ()).unwrap().findings.is_empty());
}

#[test]
fn views_of_external_tensors_are_saved_renamed_copied_and_removed() {
    let adopted = Adopted::new();
    let store = adopted.open();
    store.save_view("column", &store.load("weight").unwrap().select(1, 2).unwrap()).unwrap();
    store.rename("column", "third").unwrap();
    store.write(|txn| txn.copy("third", "again")).unwrap();
    store.remove("third").unwrap();
    store.remove("weight").unwrap();
    store.remove("bias").unwrap();
    assert_eq!(store.load("again").unwrap().read::<f32>().unwrap(), [2., 6., 10.]);
    // Another handle, and a transaction that began earlier.
    let other = adopted.open();
    let mut txn = other.begin().unwrap();
    txn.save_view("row", &other.load("again").unwrap().narrow(0, 1, 2).unwrap()).unwrap();
    store.save("more", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).unwrap();
    txn.commit().unwrap();
    assert_eq!(other.load("row").unwrap().read::<f32>().unwrap(), [6., 10.]);
    assert!(other.verify(|_| ()).unwrap().findings.is_empty());
}

#[test]
fn refused_operations_on_external_tensors_state_the_reason() {
    let adopted = Adopted::new();
    let store = adopted.open();
    let (weight, row) = (store.load("weight").unwrap(), Tensor::from_vec(vec![0f32; 4], &[1, 4]).unwrap());
    assert_refused(weight.lock_exclusive(), ErrorKind::Unsupported, &["not the store's own", "save_as"]);
    assert_refused(weight.as_live::<f32>(), ErrorKind::Unsupported, &["not the store's own"]);
    assert_refused(
        store.append("weight", &row),
        ErrorKind::Unsupported,
        &["external", "does not belong to the store"],
    );
    assert_refused(weight.as_slice::<f32>(), ErrorKind::NeedsCopy, &["open_mapped", "read"]);
}
