//! Metadata that is damaged while a store is open, and well-formed metadata that cannot be right.

use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::process::Command;

use stridemap::{ErrorKind, Store, Tensor};
use stridemap_format::{
    ChunkChain, Header, Manifest, Marker, RecordKind, Sealed, StorageRecord, TensorRecord, digest,
};

use crate::harness::{assert_refused, fast, filled, new_path, new_store};
use crate::support::temporary;

/// Creates a store whose newest generation is a manifest with changes over a table.
fn store_with_a_table(path: &Path) {
    let store = fast().create(path).unwrap();
    let mut txn = store.begin().unwrap();
    for i in 0..66u8 {
        txn.save(&format!("row.{i}"), &Tensor::from_vec(vec![i; 6], &[2, 3]).unwrap()).unwrap();
    }
    txn.set_attribute("", "author", "nobody").unwrap();
    txn.commit().unwrap();
    store.save_view("column", &store.load("row.7").unwrap().select(1, -1).unwrap()).unwrap();
    store.remove("row.3").unwrap();
}

#[test]
fn verify_by_an_open_handle_names_the_metadata_changed_since() {
    let (_dir, path) = new_path();
    store_with_a_table(&path);
    let store = Store::open(&path).unwrap();
    for (file, rule) in [("FORMAT", "F-2"), ("meta/0000000000000004.man", "F-16")] {
        let file = path.join(file);
        let whole = fs::read(&file).unwrap();
        let mut changed = whole.clone();
        changed[30] ^= 1;
        fs::write(&file, changed).unwrap();
        let findings = store.verify(|_| ()).unwrap().findings;
        assert_eq!((findings.len(), &findings[0].path), (1, &file), "{findings:?}");
        let line = findings[0].to_string();
        assert_eq!(line.matches(rule).count(), 1, "{line}");
        fs::write(&file, whole).unwrap();
    }
}

#[test]
fn verify_reads_digests_of_any_number_of_chunks() {
    const CHUNKS: u64 = 300;
    let dir = temporary();
    let (made, path) = (dir.path().join("made.smap"), dir.path().join("x.smap"));
    Store::create(&made).unwrap();
    let of_zeros = digest(&[0; 1 << 20]);
    let sums = of_zeros.repeat(CHUNKS as usize);
    let mut chain = ChunkChain::default();
    (0..CHUNKS).for_each(|_| chain.push(of_zeros));
    let sealed = Sealed { chunks: chain.link(), tail: digest(&[]), reserved_bytes: 0 };
    let record = StorageRecord {
        length_bytes: CHUNKS << 20,
        tensor_count: 0,
        kind: RecordKind::Sealed(sealed),
        is_restored: false,
    };
    let mut manifest = Manifest { next_storage_id: 2, ..Manifest::first(uuid_of(&made)) };
    manifest.storages.insert(1, Some(record));
    store_of(&path, &manifest);
    fs::copy(made.join("FORMAT"), path.join("FORMAT")).unwrap();
    fs::write(path.join("storages/0000000000000001.sum"), &sums).unwrap();
    let file = fs::File::create(path.join("storages/0000000000000001.bin")).unwrap();
    file.set_len(CHUNKS << 20).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    file.write_all_at(b"x", (280 << 20) + 5).unwrap();
    let findings = store.verify(|_| ()).unwrap().findings;
    assert_eq!((findings.len(), findings[0].offset_bytes), (1, Some(280 << 20)), "{findings:?}");
}

/// Creates a store with this manifest only.
fn store_of(path: &Path, manifest: &Manifest) {
    Store::create(path).unwrap();
    let generation = manifest.generation;
    fs::remove_file(path.join("meta/0000000000000001.man")).unwrap();
    fs::write(path.join(format!("meta/{generation:016x}.man")), manifest.encode().unwrap()).unwrap();
}

fn uuid_of(path: &Path) -> [u8; 16] {
    Marker::decode(&fs::read(path.join("FORMAT")).unwrap()).unwrap().uuid
}

#[test]
fn store_that_used_up_its_numbers_can_be_read_but_not_written() {
    let tensor = Tensor::from_vec(vec![1u8], &[1]).unwrap();
    for (generation, next_storage_id) in [(u64::MAX, 1), (7, u64::MAX), (7, 1 << 63)] {
        let dir = temporary();
        let (made, path) = (dir.path().join("made.smap"), dir.path().join("x.smap"));
        Store::create(&made).unwrap();
        let manifest = Manifest { generation, next_storage_id, ..Manifest::first(uuid_of(&made)) };
        store_of(&path, &manifest);
        fs::copy(made.join("FORMAT"), path.join("FORMAT")).unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!(store.generation(), generation);
        assert_eq!(store.save("a", &tensor).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert_eq!(store.names().unwrap(), [""; 0]);
    }
}

#[test]
fn tensor_that_claims_an_enormous_size_is_refused_only_when_read() {
    let dir = temporary();
    let (made, path) = (dir.path().join("made.smap"), dir.path().join("x.smap"));
    Store::create(&made).unwrap().save("real", &filled(16, 7u8)).unwrap();
    let huge = |dtype| {
        let header = Header::new(dtype, [1 << 31, 1 << 31], [0, 0], 0).unwrap();
        Some(TensorRecord { header: header.into(), storage_id: 1 })
    };
    let mut manifest =
        Manifest::decode(&fs::read(made.join("meta/0000000000000002.man")).unwrap(), uuid_of(&made), 2)
            .unwrap();
    manifest.tensors.insert("huge".to_owned(), huge(stridemap::DType::U8));
    manifest.tensors.insert("huge.complex".to_owned(), huge(stridemap::DType::C128));
    store_of(&path, &manifest);
    fs::copy(made.join("FORMAT"), path.join("FORMAT")).unwrap();
    fs::copy(made.join("storages/0000000000000001.bin"), path.join("storages/0000000000000001.bin")).unwrap();
    let complex = Store::open(&path).unwrap().load("huge.complex").unwrap();
    assert_eq!(complex.read::<num_complex::Complex<f64>>().unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(complex.to_bytes().unwrap_err().kind(), ErrorKind::OutOfMemory);
    let huge = Store::open(&path).unwrap().load("huge").unwrap();
    assert_eq!(huge.numel(), 1 << 62);
    assert_eq!(huge.read::<u8>().unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(huge.contiguous().unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(
        huge.slice(0, None, None, 1 << 30).unwrap().slice(1, None, Some(3), 1).unwrap().read::<u8>().unwrap(),
        [7; 6]
    );
    assert!(huge.to_string().starts_with("tensor([[7, 7, 7,  ..., 7, 7, 7],"), "{huge}");
}

#[test]
fn removing_or_renaming_a_tensor_of_an_uncounted_storage_names_the_rule_broken() {
    for (counted, rule) in [(None, "F-27"), (Some(0), "F-28")] {
        let (_dir, path, store) = new_store();
        store.save("x", &filled(4, 7u8)).unwrap();
        drop(store);
        let file = path.join("meta/0000000000000002.man");
        let mut manifest = Manifest::decode(&fs::read(&file).unwrap(), uuid_of(&path), 2).unwrap();
        let record = manifest.storages[&1].clone().unwrap();
        manifest.storages.remove(&1);
        if let Some(tensor_count) = counted {
            manifest.storages.insert(1, Some(StorageRecord { tensor_count, ..record }));
        }
        fs::write(&file, manifest.encode().unwrap()).unwrap();
        let store = Store::open(&path).unwrap();
        for refused in [store.remove("x"), store.rename("x", "y")] {
            assert_refused(refused, ErrorKind::Corrupt, &[rule]);
        }
    }
}

#[test]
fn older_manifest_that_is_not_a_file_blocks_no_collection() {
    for kind in ["directory", "symlink", "fifo"] {
        let (_dir, path, store) = new_store();
        let older = path.join("meta/0000000000000000.man");
        match kind {
            "directory" => fs::create_dir(&older).unwrap(),
            "symlink" => symlink(path.join("FORMAT"), &older).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(&older).status().unwrap().success()),
        }
        store.save("x", &Tensor::from_vec(vec![1u8, 2, 3], &[3]).unwrap()).unwrap();
        store.remove("x").unwrap();
        store.gc().unwrap();
        let left = fs::read_dir(path.join("storages")).unwrap().count();
        assert_eq!(left, 0, "{kind}: a storage without a generation is collected");
        let usage = store.disk_usage().unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert!(usage.spare.iter().all(|file| file.path == older), "{kind}: {usage:?}");
        assert!(store.verify(|_| ()).unwrap().findings.is_empty(), "{kind}");
    }
}
