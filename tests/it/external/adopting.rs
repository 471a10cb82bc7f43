//! Adopting files: options, bytes written, and materializing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stridemap::import::ExternalFile;
use stridemap::{DType, Header, Index, StorageKind};

use super::*;
use crate::harness::assert_refused;
use crate::harness::hooked::Hooked;

#[test]
fn external_files_need_the_option_to_be_adopted_or_loaded() {
    let adopted = Adopted::new();
    let store = Store::open(&adopted.path).unwrap();
    let before = store.generation();
    let advice = ["model.safetensors", "ExternalFiles::Beside", "--external beside"];
    assert_refused(store.load("weight"), ErrorKind::NotAllowed, &advice);
    assert_refused(stridemap_interop::adopt(&store, &adopted.file, "again."), ErrorKind::NotAllowed, &advice);
    assert_refused(store.materialize(|_| ()), ErrorKind::NotAllowed, &advice);
    assert_eq!((store.generation(), store.names().unwrap().len()), (before, 2));
    // Headers do not need the file.
    let infos: Vec<_> = store.snapshot().iter_tensors("").unwrap().map(Result::unwrap).collect();
    assert_eq!(infos[1].header.size(), [3, 4]);
}

#[test]
fn file_elsewhere_is_adopted_by_its_absolute_path_if_anywhere_is_allowed() {
    let (dir, elsewhere) = (crate::support::temporary(), crate::support::temporary());
    let (file, path) = (elsewhere.path().join("model.safetensors"), dir.path().join("model.smap"));
    write_model(&file);
    let store = external_beside().create(&path).unwrap();
    assert_refused(
        stridemap_interop::adopt(&store, &file, ""),
        ErrorKind::NotAllowed,
        &["adopt", "--external anywhere"],
    );
    assert_eq!(store.generation(), 1);
    // Opened by a link, the file is recorded at its actual location.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_refused(stridemap_interop::adopt(&store, &link, ""), ErrorKind::NotAllowed, &["adopt"]);
    stridemap_interop::adopt(&external_anywhere().open(&path).unwrap(), &link, "").unwrap();
    fs::remove_file(&link).unwrap();
    let store = external_anywhere().open(&path).unwrap();
    assert_eq!(store.load("weight").unwrap().read::<f32>().unwrap(), weight());
    let storage = store.snapshot().storages().next().unwrap().unwrap();
    assert_eq!(storage.file, fs::canonicalize(&file).unwrap());
}

#[test]
fn adopting_an_existing_name_keeps_the_transaction() {
    let adopted = Adopted::new();
    let store = adopted.open();
    let file = ForeignFile::open(&adopted.file).unwrap();
    store.rename("weight", "again.weight").unwrap();
    let mut txn = store.begin().unwrap();
    txn.on_existing(OnExisting::Refuse);
    assert_refused(
        file.adopt_into(&mut txn, "again."),
        ErrorKind::NameExists,
        &["adopt", "\"again.weight\""],
    );
    let mut told_bytes = 0;
    let imported = file.import_into(&mut txn, "again.", |bytes| told_bytes += bytes);
    assert_refused(imported, ErrorKind::NameExists, &["import", "\"again.weight\""]);
    assert_eq!(told_bytes, 0);
    txn.commit().unwrap();
    assert_eq!(store.names().unwrap(), ["again.weight", "bias"]);
}

#[test]
fn transaction_sees_what_it_adopts_and_commits_it_with_the_rest() {
    let adopted = Adopted::new();
    let store = adopted.open();
    let file = ForeignFile::open(&adopted.file).unwrap();
    let mut txn = store.begin().unwrap();
    file.adopt_into(&mut txn, "again.").unwrap();
    let weight_again = txn.load("again.weight").unwrap();
    assert_eq!(weight_again.read::<f32>().unwrap(), weight());
    txn.save_view("again.row", &weight_again.index([Index::At(1)]).unwrap()).unwrap();
    txn.remove("again.bias").unwrap();
    // Another writer commits first, and takes the id that this transaction would have used.
    adopted.open().save("other", &Tensor::from_vec(vec![1f32], &[1]).unwrap()).unwrap();
    txn.commit().unwrap();
    assert_eq!(store.load("again.row").unwrap().read::<f32>().unwrap(), [4., 5., 6., 7.]);
    assert!(!store.contains("again.bias").unwrap());
    assert!(store.verify(|_| ()).unwrap().findings.is_empty());
}

#[test]
fn file_that_changes_before_the_commit_is_not_adopted() {
    let adopted = Adopted::new();
    let store = adopted.open();
    let before = store.generation();
    let file = ForeignFile::open(&adopted.file).unwrap();
    let mut txn = store.begin().unwrap();
    file.adopt_into(&mut txn, "again.").unwrap();
    set_mtime(&adopted.file, Duration::from_secs(60));
    assert_refused(txn.commit(), ErrorKind::ExternalChanged, &["model.safetensors", "mtime in ns"]);
    let mut txn = store.begin().unwrap();
    assert_refused(file.adopt_into(&mut txn, ""), ErrorKind::ExternalChanged, &["adopt", "mtime in ns"]);
    assert_eq!(store.generation(), before);
}

#[test]
fn external_files_are_never_collected() {
    let adopted = Adopted::new();
    let bytes = fs::read(&adopted.file).unwrap();
    let store = adopted.open();
    let pinned = store.snapshot();
    for name in ["weight", "bias"] {
        store.remove(name).unwrap();
    }
    store.save("own", &Tensor::from_vec(vec![1f32], &[1]).unwrap()).unwrap();
    store.gc().unwrap();
    assert_eq!(store.snapshot().storages().count(), 1);
    // A reader of the older generation can still read it.
    assert_eq!(pinned.load("weight").unwrap().read::<f32>().unwrap(), weight());
    drop(pinned);
    store.save("own", &Tensor::from_vec(vec![2f32], &[1]).unwrap()).unwrap();
    store.gc().unwrap();
    store.compact(false, |_| ()).unwrap();
    assert_eq!(fs::read(&adopted.file).unwrap(), bytes);
    assert!(store.snapshot().storages().all(|storage| storage.unwrap().kind == StorageKind::Sealed));
}

#[test]
fn materialized_tensors_no_longer_need_the_file() {
    let adopted = Adopted::new();
    let store = adopted.open();
    let w = store.load("weight").unwrap();
    store.save_view("column", &w.select(1, 2).unwrap()).unwrap();
    store.save_view("tied", &w).unwrap();
    store.remove("bias").unwrap();
    let mut written = 0;
    let done = store.materialize(|bytes| written += bytes).unwrap();
    assert_eq!((done.storage_count, done.after_bytes, written), (1, 80, 48), "32 bytes keep the alignment");
    assert!(done.skipped.is_empty());
    fs::remove_file(&adopted.file).unwrap();
    let store = Store::open(&adopted.path).unwrap();
    assert_eq!(store.load("weight").unwrap().read::<f32>().unwrap(), weight());
    let (column, tied) = (store.load("column").unwrap(), store.load("tied").unwrap());
    assert_eq!(column.read::<f32>().unwrap(), [2., 6., 10.]);
    assert!(column.shares_storage(&tied), "views that shared elements share them still");
    assert!(store.verify(|_| ()).unwrap().findings.is_empty());
    assert_eq!(store.materialize(|_| ()).unwrap().storage_count, 0);
}

#[test]
fn empty_tensors_and_files_without_tensors_are_adopted() {
    let dir = crate::support::temporary();
    let path = dir.path().join("model.smap");
    let store = external_beside().create(&path).unwrap();
    for (name, tensors) in [
        ("none", Vec::new()),
        ("empty", vec![("empty".to_owned(), Tensor::zeros(DType::F32, &[0, 3]).unwrap())]),
    ] {
        let file = dir.path().join(name);
        safetensors::Export::new().write(&file, &tensors, |_| ()).unwrap();
        stridemap_interop::adopt(&store, &file, "").unwrap();
    }
    assert_eq!(store.names().unwrap(), ["empty"]);
    assert!(mapped(&external_beside(), &path).load("empty").unwrap().as_slice::<f32>().unwrap().is_empty());
    assert_eq!(store.materialize(|_| ()).unwrap().storage_count, 1);
    assert_eq!(store.load("empty").unwrap().size(), [0, 3]);
}

#[test]
fn store_opened_through_a_link_or_dots_finds_its_external_file() {
    let adopted = Adopted::new();
    let elsewhere = crate::support::temporary();
    let link = elsewhere.path().join("link.smap");
    std::os::unix::fs::symlink(&adopted.path, &link).unwrap();
    for path in [link, adopted.path.join("storages/..")] {
        let store = external_beside().open(&path).unwrap();
        assert_eq!(store.load("weight").unwrap().read::<f32>().unwrap(), weight(), "{}", path.display());
        let shown = store.snapshot().storages().next().unwrap().unwrap().file;
        assert_eq!(fs::canonicalize(shown).unwrap(), fs::canonicalize(&adopted.file).unwrap());
    }
}

#[test]
fn each_name_of_a_file_is_recorded_as_it_was_adopted() {
    let dir = crate::support::temporary();
    let [first, second, third] = ["a.bin", "b.bin", "c.bin"].map(|name| dir.path().join(name));
    fs::write(&first, [1, 2, 3, 4]).unwrap();
    fs::hard_link(&first, &second).unwrap();
    let store = external_beside().create(dir.path().join("x.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let adopt = |txn: &mut stridemap::Transaction<'_>, name: &str, path: &Path| {
        let key = txn.adopt(&ExternalFile::open(path).unwrap(), 0..4).unwrap();
        txn.save_header(name, &Header::contiguous(DType::U8, &[4]).unwrap(), key).unwrap();
    };
    adopt(&mut txn, "a", &first);
    adopt(&mut txn, "b", &second);
    fs::rename(&first, &third).unwrap();
    adopt(&mut txn, "c", &third);
    txn.commit().unwrap();
    assert_eq!(store.load("c").unwrap().read::<u8>().unwrap(), [1, 2, 3, 4]);
    assert_eq!(store.load("b").unwrap().read::<u8>().unwrap(), [1, 2, 3, 4]);
    fs::remove_file(&second).unwrap();
    assert_refused(
        external_beside().open(store.path()).unwrap().load("b"),
        ErrorKind::ExternalChanged,
        &["b.bin"],
    );
}

#[test]
fn materializing_never_publishes_after_a_failed_sync_on_a_full_disk() {
    let dir = crate::support::temporary();
    let path = dir.path().join("x.smap");
    let store = external_beside().create(&path).unwrap();
    for name in ["a", "b"] {
        // Large, so that each gets a storage of its own, with a file of digests.
        let (file, size_bytes) = (dir.path().join(name), 5 << 20);
        fs::write(&file, vec![1; size_bytes]).unwrap();
        let mut txn = store.begin().unwrap();
        let key = txn.adopt(&ExternalFile::open(&file).unwrap(), 0..size_bytes as u64).unwrap();
        txn.save_header(name, &Header::contiguous(DType::U8, &[size_bytes]).unwrap(), key).unwrap();
        txn.commit().unwrap();
    }
    let syncs = AtomicUsize::new(0);
    let disk = Hooked::before(move |operation, path| {
        let is_storage = path.parent().is_some_and(|dir| dir.ends_with("storages"));
        match operation == "sync" && is_storage && syncs.fetch_add(1, Ordering::Relaxed) == 2 {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    });
    let store = external_beside().disk(Arc::new(disk)).open(&path).unwrap();
    let before = store.generation();
    assert_refused(store.materialize(|_| ()), ErrorKind::Io, &["sync"]);
    assert_refused(store.save("x", &1i32), ErrorKind::Poisoned, &["sync"]);
    assert_eq!(external_beside().open(&path).unwrap().generation(), before);
}
