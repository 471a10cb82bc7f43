//! The good stores are read with their recorded content.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::Value;
use stridemap::{ErrorKind, Store, Tensor};
use stridemap_format::{FileStamp, Manifest, RecordKind, Uuid};

use super::digests::digests_of;
use super::{copied, expected, good, opened, stores};

/// Returns the recorded content of a store, without its description.
fn stated(dir: &Path) -> Value {
    let mut stated = expected(dir);
    for key in ["about", "filled", "tags", "tagged"] {
        stated.as_object_mut().unwrap().remove(key);
    }
    stated
}

#[test]
fn good_stores_have_their_recorded_content() {
    for (name, dir) in stores("good") {
        let copy = copied(&dir);
        if name == "external" {
            assert_stamp_is_checked(copy.path());
            stamp(copy.path());
        }
        let before = digests_of(copy.path());
        for store in opened(copy.path()) {
            let store = store.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(good::content(&store.snapshot()), stated(&dir), "{name}");
            assert_eq!(store.verify(|_| ()).unwrap().findings, [], "{name}");
            let tags = expected(&dir).get("tags").and_then(Value::as_object).cloned().unwrap_or_default();
            assert_eq!(store.tags().unwrap().len(), tags.len(), "{name}");
            for (tag, generation) in &tags {
                let stated = &expected(&dir)["tagged"][generation.to_string()];
                assert_eq!(good::content(&store.at(tag.as_str()).unwrap()), *stated, "{name}: {tag}");
            }
            for tensor in store.names().unwrap() {
                assert_lent(&store.load(&tensor).unwrap());
            }
        }
        assert_eq!(digests_of(copy.path()), before, "{name}: reading changed something");
    }
}

/// Asserts that borrowed elements equal the ones that are read.
fn assert_lent(tensor: &Tensor) {
    let Ok(lent) = tensor.as_slice::<u8>() else { return };
    assert_eq!(lent, tensor.read::<u8>().unwrap());
}

#[test]
fn good_stores_accept_new_commits() {
    for (name, dir) in stores("good") {
        let copy = copied(&dir);
        if name == "external" {
            stamp(copy.path());
        }
        let store = opened(copy.path()).into_iter().next().unwrap().unwrap();
        let mut expected = stated(&dir)["tensors"].clone();
        store.save("~ added", &Tensor::from_vec(vec![1u8, 2, 3], &[3]).unwrap()).unwrap();
        store.gc().unwrap();
        store.compact(false, |_| ()).unwrap();
        let again = opened(copy.path()).into_iter().next().unwrap().unwrap();
        let found = good::content(&again.snapshot());
        // A compaction may move a tensor, but keeps its elements.
        let plain = |tensors: &mut Value| -> Vec<Value> {
            let mut tensors = tensors.as_array().unwrap().clone();
            for tensor in &mut tensors {
                for place in ["stride", "storage", "storage_offset"] {
                    tensor.as_object_mut().unwrap().remove(place);
                }
            }
            tensors.retain(|tensor| tensor["name"] != "~ added");
            tensors
        };
        assert_eq!(plain(&mut found["tensors"].clone()), plain(&mut expected), "{name}");
        assert_eq!(again.load("~ added").unwrap().read::<u8>().unwrap(), [1, 2, 3], "{name}");
        assert_eq!(again.verify(|_| ()).unwrap().findings, [], "{name}");
        for foreign in ["lost+found/#1234", "README.txt", "storages/1.bin", "meta/7.man"] {
            assert_eq!(
                copy.path().join("store").join(foreign).exists(),
                name == "foreign_files",
                "{name}: {foreign}"
            );
        }
        assert!(!copy.path().join("store/UNSYNCED").exists(), "{name}: the commit synced everything");
    }
}

/// A copy of an external file is a different file to a store: its headers are read, but its elements are refused.
fn assert_stamp_is_checked(copy: &Path) {
    for store in opened(copy) {
        let store = store.unwrap();
        assert_eq!(store.names().unwrap(), ["t", "x"]);
        assert_eq!(store.load("x").unwrap_err().kind(), ErrorKind::ExternalChanged);
    }
    let refused = Store::open(copy.join("store")).unwrap().load("x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotAllowed);
}

/// Updates the records of external storages to the state of the file on this machine.
fn stamp(copy: &Path) {
    let store = copy.join("store");
    let uuid: Uuid = fs::read(store.join("FORMAT")).unwrap()[16..32].try_into().unwrap();
    let newest = fs::read_dir(store.join("meta")).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let number = u64::from_str_radix(newest.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let mut manifest = Manifest::decode(&fs::read(&newest).unwrap(), uuid, number).unwrap();
    for record in manifest.storages.values_mut().flatten() {
        if let RecordKind::External(external) = &mut record.kind {
            let found = fs::metadata(copy.join(&external.path)).unwrap();
            let mtime_ns = found.mtime() * 1_000_000_000 + found.mtime_nsec();
            external.stamp = FileStamp { inode: found.ino(), size_bytes: found.len(), mtime_ns };
        }
    }
    fs::write(&newest, manifest.encode().unwrap()).unwrap();
}
