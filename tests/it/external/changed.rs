//! External files that changed after adoption.

use std::os::unix::fs::FileExt as _;

use rustix::fs::{CWD, FileType, mknodat};
use stridemap::Rule;

use super::*;
use crate::harness::assert_refused;

fn truncate_by(path: &Path, by: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - by).unwrap();
}

#[test]
fn external_file_of_the_wrong_length_is_refused_before_it_is_mapped() {
    let adopted = Adopted::new();
    let whole = fs::read(&adopted.file).unwrap();
    truncate_by(&adopted.file, 8);
    let advice =
        ["load \"weight\"", "model.safetensors", "size in bytes", "adopt the current one", "import it"];
    adopted.assert_changed(&advice);
    truncate_by(&adopted.file, whole.len() as u64 - 8);
    adopted.assert_changed(&advice);
    fs::write(&adopted.file, [&whole[..], &[0; 8]].concat()).unwrap();
    adopted.assert_changed(&["size in bytes", "mtime in ns"]);
}

/// The contract of a mapped store excludes this, but it returns an error anyway.
#[test]
fn reading_an_external_file_truncated_after_loading_returns_an_error() {
    let adopted = Adopted::new();
    let weight = adopted.open().load("weight").unwrap();
    assert_eq!(weight.get::<f32>(&[2, 3]).unwrap(), 11.);
    truncate_by(&adopted.file, 40);
    let parts = ["model.safetensors", "changed since it was opened", "size in bytes"];
    assert_refused(weight.read::<f32>(), ErrorKind::ExternalChanged, &parts);
    // The remaining bytes are not returned either, because they may have changed.
    assert_refused(weight.get::<f32>(&[0, 0]), ErrorKind::ExternalChanged, &parts);
}

#[test]
fn external_file_rewritten_in_place_is_refused_by_its_mtime_and_found_by_verify() {
    let adopted = Adopted::new();
    let weight = adopted.open().load("weight").unwrap();
    let file = File::options().write(true).open(&adopted.file).unwrap();
    file.write_all_at(&[0; 4], file.metadata().unwrap().len() - 4).unwrap();
    assert_refused(weight.read::<f32>(), ErrorKind::ExternalChanged, &["mtime in ns"]);
    adopted.assert_changed(&["mtime in ns"]);
    let findings = adopted.open().verify(|_| ()).unwrap().findings;
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((&finding.path, finding.rule), (&adopted.file, Rule::ExternalFile));
    for part in ["affects \"bias\", \"weight\"", "mtime in ns", "F-29"] {
        assert!(finding.to_string().contains(part), "{finding}");
    }
}

/// The first tensor keeps the file open or mapped. A load of another must not show the bytes that are in the file now.
#[test]
fn each_load_checks_the_file_although_a_tensor_on_it_is_held() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("mtime in ns", |path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&[0xff; 64], file.metadata().unwrap().len() - 64).unwrap();
        }),
        ("inode", |path| {
            let other = path.with_extension("other");
            fs::write(&other, vec![0xff; fs::metadata(path).unwrap().len() as usize]).unwrap();
            fs::rename(&other, path).unwrap();
        }),
        ("size in bytes", |path| truncate_by(path, 8)),
        ("the file is missing", |path| fs::remove_file(path).unwrap()),
    ];
    for (what, change) in changes {
        let adopted = Adopted::new();
        let views = adopted.open();
        views.save_view("column", &views.load("weight").unwrap().select(1, 0).unwrap()).unwrap();
        for store in [adopted.open(), mapped(&external_beside(), &adopted.path)] {
            let (snapshot, held) = (store.snapshot(), store.load("weight").unwrap());
            let mut txn = store.begin().unwrap();
            let another = mapped(&external_beside(), &adopted.path);
            let held_by_another = another.load("bias").unwrap();
            let original = adopted.dir.path().join("original");
            fs::hard_link(&adopted.file, &original).unwrap();
            let (bytes, time) =
                (fs::read(&original).unwrap(), fs::metadata(&original).unwrap().modified().unwrap());
            change(&adopted.file);
            let assert_changed = |loaded: stridemap::Result<()>| {
                assert_refused(loaded, ErrorKind::ExternalChanged, &["model.safetensors", "adopted", what]);
            };
            for name in ["bias", "weight", "column"] {
                assert_changed(store.load(name).map(drop));
                assert_changed(snapshot.load(name).map(drop));
                assert_changed(another.load(name).map(drop));
                assert_changed(txn.load(name).map(drop));
            }
            assert_changed(snapshot.iter_loaded("").unwrap().try_for_each(|entry| entry.map(drop)));
            assert_changed(store.snapshot().copy_to(adopted.dir.path().join("copy"), None, |_| ()).map(drop));
            assert_changed(store.materialize(|_| ()).map(drop));
            assert_eq!(store.verify(|_| ()).unwrap().findings.len(), 1);
            // A view is a header. It is refused when it is loaded.
            txn.save_view("view", &held.select(0, 0).unwrap()).unwrap();
            assert_changed(txn.load("view").map(drop));
            drop((txn, held, held_by_another));
            assert_changed(store.load("bias").map(drop));
            // As the error advises.
            fs::write(&original, &bytes).unwrap();
            File::options().write(true).open(&original).unwrap().set_modified(time).unwrap();
            fs::rename(&original, &adopted.file).unwrap();
            let _ = fs::remove_file(&original);
            assert_eq!(store.load("weight").unwrap().read::<f32>().unwrap(), weight());
        }
    }
}

/// A change within the same tick of the kernel's clock would keep the mtime.
#[test]
fn external_file_rewritten_right_after_adoption_is_refused() {
    for _ in 0..5 {
        let adopted = Adopted::new();
        let file = File::options().write(true).open(&adopted.file).unwrap();
        file.write_all_at(&[0; 4], file.metadata().unwrap().len() - 4).unwrap();
        adopted.assert_changed(&["mtime in ns"]);
    }
}

#[test]
fn replaced_external_file_keeps_its_bytes_for_open_tensors_and_is_refused_afterwards() {
    let adopted = Adopted::new();
    let (store, lending) = (adopted.open(), mapped(&external_beside(), &adopted.path));
    let (read, lent) = (store.load("weight").unwrap(), lending.load("weight").unwrap());
    let slice = lent.as_slice::<f32>().unwrap();
    let other = adopted.dir.path().join("other");
    fs::write(&other, vec![0xff; fs::metadata(&adopted.file).unwrap().len() as usize]).unwrap();
    fs::rename(&other, &adopted.file).unwrap();
    assert_eq!(read.read::<f32>().unwrap(), weight());
    assert_eq!(slice, weight());
    adopted.assert_changed(&["inode", "adopt the current one"]);
    drop(read);
    // The same handle, after the last tensor that keeps the old file open is dropped.
    assert_refused(store.load("weight"), ErrorKind::ExternalChanged, &["inode"]);
}

#[test]
fn external_path_that_is_not_a_regular_file_is_refused_at_once() {
    let adopted = Adopted::new();
    fs::remove_file(&adopted.file).unwrap();
    mknodat(CWD, &adopted.file, FileType::Fifo, 0o600.into(), 0).unwrap();
    adopted.assert_changed(&["not a regular file"]);
    assert_refused(
        stridemap_interop::adopt(&external_beside().open(&adopted.path).unwrap(), &adopted.file, ""),
        ErrorKind::BadFile,
        &["not a regular file"],
    );
    fs::remove_file(&adopted.file).unwrap();
    fs::create_dir(&adopted.file).unwrap();
    adopted.assert_changed(&["not a regular file"]);
    fs::remove_dir(&adopted.file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &adopted.file).unwrap();
    let load = || external_anywhere().open(&adopted.path).unwrap().load("weight");
    assert_refused(load(), ErrorKind::ExternalChanged, &["not a regular file"]);
}

#[test]
fn store_moved_with_its_external_file_works_but_a_copy_of_both_is_refused() {
    let adopted = Adopted::new();
    let moved = adopted.dir.path().join("moved");
    fs::create_dir(&moved).unwrap();
    for path in [&adopted.file, &adopted.path] {
        fs::rename(path, moved.join(path.file_name().unwrap())).unwrap();
    }
    let path = moved.join("model.smap");
    assert_eq!(
        external_beside().open(&path).unwrap().load("weight").unwrap().read::<f32>().unwrap(),
        weight()
    );
    let copy = adopted.dir.path().join("copy");
    let copied =
        std::process::Command::new("cp").args(["-a".as_ref(), moved.as_os_str(), copy.as_os_str()]).status();
    assert!(copied.unwrap().success());
    let store = external_beside().open(copy.join("model.smap")).unwrap();
    assert_refused(store.load("weight"), ErrorKind::ExternalChanged, &["inode", "adopt the current one"]);
    // As the error advises.
    stridemap_interop::adopt(&store, copy.join("model.safetensors"), "").unwrap();
    assert_eq!(store.load("weight").unwrap().read::<f32>().unwrap(), weight());
}

#[test]
fn verify_skips_and_reports_files_it_may_not_open() {
    let adopted = Adopted::new();
    fs::remove_file(&adopted.file).unwrap();
    let store = Store::open(&adopted.path).unwrap();
    assert!(store.verify(|_| ()).unwrap().findings.is_empty());
    let unchecked = |store: &Store| store.verify(|_| ()).unwrap().unchecked_files;
    assert_eq!(unchecked(&store), std::slice::from_ref(&adopted.file));
    assert!(unchecked(&adopted.open()).is_empty());
}
