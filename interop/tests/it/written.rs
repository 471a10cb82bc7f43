//! Guarantees of all exports: durability, permissions, refusals, and existing files.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use stridemap::{DType, ErrorKind, OnExisting, Result, Tensor};
use stridemap_interop::{ForeignFile, npy, npz, safetensors};

use crate::place::{Place, counted, logical, views};

#[test]
fn views_are_exported_in_their_logical_order() {
    let place = Place::new();
    place.store.save("base", &counted(DType::I32, &[4, 5])).unwrap();
    for base in [place.store.load("base").unwrap(), counted(DType::I32, &[4, 5])] {
        let path = place.path("views.safetensors");
        safetensors::Export::new().write(&path, &views(&base), |_| ()).unwrap();
        place.import(&path).unwrap();
        for (name, view) in views(&base) {
            assert_eq!(logical(&place.store.load(&name).unwrap()), logical(&view), "{name}");
            let path = place.path("view.npy");
            npy::Export::new().write(&path, &view, |_| ()).unwrap();
            place.import(&path).unwrap();
            assert_eq!(logical(&place.store.load("view").unwrap()), logical(&view), "{name}");
        }
    }
}

#[test]
fn tensors_longer_than_a_piece_are_streamed() {
    let place = Place::new();
    let tensor = Tensor::from_vec((0..1_500_000u64).collect(), &[1000, 1500]).unwrap();
    let (one, many) = (place.path("one.npy"), place.path("many.safetensors"));
    let mut reports = Vec::new();
    npy::Export::new().write(&one, &tensor.t().unwrap(), |bytes| reports.push(bytes)).unwrap();
    assert_eq!((reports.len(), reports.iter().sum()), (3, tensor.nbytes() as u64));
    place.import(&one).unwrap();
    let imported = place.store.load("one").unwrap();
    assert_eq!(logical(&imported.t().unwrap()), logical(&tensor));

    safetensors::Export::new().write(&many, &[("y".into(), imported)], |_| ()).unwrap();
    place.import(&many).unwrap();
    assert_eq!(logical(&place.store.load("y").unwrap().t().unwrap()), logical(&tensor));
}

#[test]
fn pipes_and_directories_are_refused_without_waiting() {
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
        let written = npy::Export::new().write(path, &counted(DType::U8, &[1]), |_| ());
        assert_eq!(written.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    assert_eq!(ForeignFile::open(place.path("none")).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn refused_export_keeps_the_old_file_and_leaves_no_other() {
    let place = Place::new();
    let tensor = counted(DType::U8, &[1]);
    let path = place.file("x", b"old");
    let written = [
        npy::Export::new().on_existing(OnExisting::Refuse).write(&path, &tensor, |_| ()),
        safetensors::Export::new()
            .on_existing(OnExisting::Refuse)
            .write(&path, &[("x".into(), tensor.clone())], |_| ())
            .map(drop),
        npz::Export::new()
            .on_existing(OnExisting::Refuse)
            .write(&path, &[("x".into(), tensor)], |_| ())
            .map(drop),
    ];
    for error in written.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(place.names(), ["store.smap", "x"]);
}

#[test]
fn file_created_during_an_export_that_refuses_existing_files_is_kept() {
    let place = Place::new();
    let path = place.path("x.npy");
    let written =
        npy::Export::new().on_existing(OnExisting::Refuse).write(&path, &counted(DType::U8, &[1]), |_| {
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
    npy::Export::new().write(&path, &counted(DType::U8, &[1]), |_| ()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&any));
}

#[test]
fn open_file_keeps_its_bytes_when_an_export_replaces_it() {
    let place = Place::new();
    let (path, link) = (place.path("x.npy"), place.path("link.npy"));
    let (old, new) = (counted(DType::U16, &[5]), counted(DType::F64, &[2]));
    npy::Export::new().write(&path, &old, |_| ()).unwrap();
    symlink(&path, &link).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    npy::Export::new().write(&link, &new, |_| ()).unwrap();
    assert_eq!(ForeignFile::open(&path).unwrap().tensors().next().unwrap().header.dtype(), DType::U16);
    npy::Export::new().write(&path, &new, |_| ()).unwrap();
    let mut txn = place.store.begin().unwrap();
    file.import_into(&mut txn, "old ", |_| ()).unwrap();
    txn.commit().unwrap();
    assert_eq!(logical(&place.store.load("old x").unwrap()), logical(&old));
}

#[test]
fn file_truncated_after_opening_is_an_error_and_changes_nothing() {
    let place = Place::new();
    let path = place.path("x.npy");
    npy::Export::new().write(&path, &counted(DType::U16, &[500]), |_| ()).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(200).unwrap();
    let mut txn = place.store.begin().unwrap();
    assert_eq!(file.import_into(&mut txn, "", |_| ()).unwrap_err().kind(), ErrorKind::ExternalChanged);
    drop(txn);
    assert!(place.store.names().unwrap().is_empty());
}
