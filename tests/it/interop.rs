//! Files of other formats, in and out.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use stridemap::interop::{ForeignFile, npy, safetensors};
use stridemap::{DType, Durability, ErrorKind, OnExisting, Result, Store, StoreOptions, Tensor};
use tempfile::TempDir;

/// A directory with an empty store in it.
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
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The names in the directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn import(&self, path: &Path) -> Result<()> {
        let mut txn = self.store.begin()?;
        txn.import(&ForeignFile::open(path)?, "", &mut |_| ())?;
        txn.commit().map(drop)
    }

    /// Imports a file that must be refused; gives the message.
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

/// A tensor of counted bytes.
pub(crate) fn counted(dtype: DType, size: &[usize]) -> Tensor {
    let count = size.iter().product::<usize>() * dtype.itemsize();
    let bytes: Vec<u8> =
        (0..count).map(|i| if dtype == DType::Bool { i as u8 % 2 } else { i as u8 }).collect();
    Tensor::from_bytes(dtype, size, &bytes).unwrap()
}

/// What a file holds, whatever the strides in the store.
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

pub(crate) fn no_metadata() -> BTreeMap<String, String> {
    BTreeMap::new()
}

pub(crate) fn quiet() -> impl FnMut(u64) {
    |_| ()
}

#[test]
fn views_are_exported_in_their_logical_order() {
    let place = Place::new();
    place.store.save("base", &counted(DType::I32, &[4, 5])).unwrap();
    for base in [place.store.load("base").unwrap(), counted(DType::I32, &[4, 5])] {
        let path = place.path("views.safetensors");
        safetensors::write(&path, &views(&base), &no_metadata(), OnExisting::Replace, &mut quiet()).unwrap();
        place.import(&path).unwrap();
        for (name, view) in views(&base) {
            assert_eq!(logical(&place.store.load(&name).unwrap()), logical(&view), "{name}");
            let path = place.path("view.npy");
            npy::write(&path, &view, OnExisting::Replace, &mut quiet()).unwrap();
            place.import(&path).unwrap();
            assert_eq!(logical(&place.store.load("view").unwrap()), logical(&view), "{name}");
        }
    }
}

#[test]
fn tensors_longer_than_a_piece_are_streamed_whole() {
    let place = Place::new();
    let tensor = Tensor::from_vec((0..1_500_000u64).collect(), &[1000, 1500]).unwrap();
    let (one, many) = (place.path("one.npy"), place.path("many.safetensors"));
    let mut reports = Vec::new();
    npy::write(&one, &tensor.t().unwrap(), OnExisting::Refuse, &mut |bytes| reports.push(bytes)).unwrap();
    assert_eq!((reports.len(), reports.iter().sum()), (3, tensor.nbytes() as u64));
    place.import(&one).unwrap();
    let imported = place.store.load("one").unwrap();
    assert_eq!(logical(&imported.t().unwrap()), logical(&tensor));

    safetensors::write(&many, &[("y".into(), imported)], &no_metadata(), OnExisting::Refuse, &mut quiet())
        .unwrap();
    place.import(&many).unwrap();
    assert_eq!(logical(&place.store.load("y").unwrap().t().unwrap()), logical(&tensor));
}

#[test]
fn every_truncation_and_every_changed_byte_is_refused_or_harmless() {
    let place = Place::new();
    let (one, many) = (place.path("good.npy"), place.path("good.safetensors"));
    let tensors =
        [("a", DType::F32), ("b", DType::U8)].map(|(name, dtype)| (name.to_owned(), counted(dtype, &[2, 1])));
    let metadata = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    safetensors::write(&many, &tensors, &metadata, OnExisting::Refuse, &mut quiet()).unwrap();
    npy::write(&one, &tensors[0].1, OnExisting::Refuse, &mut quiet()).unwrap();
    for (good, name) in [(one, "x.npy"), (many, "x.safetensors")] {
        let good = fs::read(good).unwrap();
        for length in 0..good.len() {
            place.refuse(name, &good[..length]);
        }
        place.refuse(name, &[good.as_slice(), b"\0"].concat());
        for at in 0..good.len() {
            for bits in [0x01, 0x10, 0x80, 0xff] {
                let mut broken = good.clone();
                broken[at] ^= bits;
                let opened = place.file(name, &broken);
                if let Err(error) = place.import(&opened) {
                    assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_a_file_is_refused_without_waiting() {
    let place = Place::new();
    let fifo = place.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for path in [fifo.as_path(), place.dir.path()] {
        assert_eq!(ForeignFile::open(path).unwrap_err().kind(), ErrorKind::BadFile);
        let written = npy::write(path, &counted(DType::U8, &[1]), OnExisting::Replace, &mut quiet());
        assert_eq!(written.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    assert_eq!(ForeignFile::open(place.path("none")).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn refused_export_leaves_the_old_file_and_nothing_beside_it() {
    let place = Place::new();
    let tensor = counted(DType::U8, &[1]);
    let path = place.file("x", b"old");
    let written = [
        npy::write(&path, &tensor, OnExisting::Refuse, &mut quiet()),
        safetensors::write(&path, &[("x".into(), tensor)], &no_metadata(), OnExisting::Refuse, &mut quiet()),
    ];
    for error in written.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(place.names(), ["store.smap", "x"]);
}

#[test]
fn file_that_appears_during_a_refusing_export_is_left() {
    let place = Place::new();
    let path = place.path("x.npy");
    let written = npy::write(&path, &counted(DType::U8, &[1]), OnExisting::Refuse, &mut |_| {
        fs::write(&path, b"faster").unwrap();
    });
    assert_eq!(written.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"faster");
    assert_eq!(place.names(), ["store.smap", "x.npy"]);
}

#[test]
fn exported_file_has_the_permissions_of_any_new_file() {
    let place = Place::new();
    let any = place.file("any", b"");
    let path = place.path("x.npy");
    npy::write(&path, &counted(DType::U8, &[1]), OnExisting::Refuse, &mut quiet()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&any));
}

#[test]
fn case_29_open_file_keeps_its_bytes_when_an_export_takes_its_name() {
    let place = Place::new();
    let (path, link) = (place.path("x.npy"), place.path("link.npy"));
    let (old, new) = (counted(DType::U16, &[5]), counted(DType::F64, &[2]));
    npy::write(&path, &old, OnExisting::Refuse, &mut quiet()).unwrap();
    symlink(&path, &link).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    npy::write(&link, &new, OnExisting::Replace, &mut quiet()).unwrap();
    assert_eq!(ForeignFile::open(&path).unwrap().tensors().next().unwrap().dtype, DType::U16);
    npy::write(&path, &new, OnExisting::Replace, &mut quiet()).unwrap();
    let mut txn = place.store.begin().unwrap();
    txn.import(&file, "old ", &mut quiet()).unwrap();
    txn.commit().unwrap();
    assert_eq!(logical(&place.store.load("old x").unwrap()), logical(&old));
}

#[test]
fn file_cut_after_it_was_opened_is_an_error_and_changes_nothing() {
    let place = Place::new();
    let path = place.path("x.npy");
    npy::write(&path, &counted(DType::U16, &[500]), OnExisting::Refuse, &mut quiet()).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(200).unwrap();
    let mut txn = place.store.begin().unwrap();
    assert_eq!(txn.import(&file, "", &mut quiet()).unwrap_err().kind(), ErrorKind::ExternalChanged);
    drop(txn);
    assert!(place.store.names().unwrap().is_empty());
}
