//! Imports that share the blocks of a file instead of copying it, on images of real btrfs and XFS file systems.
//! Skipped, with the reason printed, where these cannot be created or mounted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use stridemap::{DType, Durability, ErrorKind, OnExisting, Store, StoreOptions, Tensor};
use stridemap_interop::safetensors::Export;
use stridemap_interop::{ForeignFile, Imported, npy};

use crate::images::{IMAGE_BYTES, Image, assert_same, is_shared, model, noise, on_each, size_of};

fn write(path: &Path, tensors: &[(String, Tensor)], options: &Export<'_>) -> PathBuf {
    options.write(path, tensors, |_| ()).unwrap().pop().unwrap()
}

fn import(store: &Store, path: &Path) -> (Imported, u64) {
    let mut told_bytes = 0;
    let mut txn = store.begin().unwrap();
    let imported =
        ForeignFile::open(path).unwrap().import_into(&mut txn, "", |bytes| told_bytes += bytes).unwrap();
    txn.commit().unwrap();
    (imported, told_bytes)
}

#[test]
fn imported_file_takes_no_space_and_keeps_its_elements_when_the_file_is_overwritten() {
    on_each(|kind, image| {
        let tensors = model();
        let size_bytes = size_of(&tensors);
        let path = write(&image.path.join("m.safetensors"), &tensors, &Export::new());
        let store = Store::create(image.path.join("store.smap")).unwrap();
        let before = image.free_bytes();
        let (imported, told_bytes) = import(&store, &path);
        let taken = before.saturating_sub(image.free_bytes());
        println!("{kind}: {size_bytes} bytes imported, {taken} bytes of the disk taken");
        assert_eq!((imported.shared_bytes, imported.copied_bytes, told_bytes), (size_bytes, 0, size_bytes));
        assert!(taken < size_bytes / 16, "{kind}: {taken} bytes taken");
        let storages: Vec<_> = store.snapshot().storages().map(Result::unwrap).collect();
        assert_eq!(storages.len(), 1);
        assert_eq!(storages[0].size_bytes, fs::metadata(&path).unwrap().len());
        assert!(is_shared(&storages[0].file), "{kind}");
        assert_same(&store, &tensors);

        let file = File::options().write(true).open(&path).unwrap();
        for offset in (0..size_bytes).step_by(1 << 20) {
            file.write_all_at(&[0xff; 1 << 20], offset).unwrap();
        }
        file.sync_all().unwrap();
        assert_same(&store, &tensors);
        drop(store);
        fs::remove_file(&path).unwrap();
        let store = Store::open(image.path.join("store.smap")).unwrap();
        assert_same(&store, &tensors);
        // SAFETY: no other process writes this store.
        let mapped = unsafe { Store::open_mapped(image.path.join("store.smap")).unwrap() };
        assert_same(&mapped, &tensors);
        // The shared storage behaves like any other.
        store.remove("large").unwrap();
        store.compact(false, |_| ()).unwrap();
        assert_same(&store, &tensors[1..]);
    });
}

#[test]
fn each_part_of_a_model_is_shared() {
    on_each(|kind, image| {
        let tensors = model();
        let index =
            write(&image.path.join("m.safetensors"), &tensors, &Export::new().max_shard_bytes(6 << 20));
        let store = Store::create(image.path.join("store.smap")).unwrap();
        let (imported, _) = import(&store, &index);
        // The last part is too small to get its own storage.
        let parts: Vec<_> = store.snapshot().storages().map(|storage| storage.unwrap().size_bytes).collect();
        assert!(
            parts.len() > 2 && imported.shared_bytes > size_of(&tensors) * 3 / 4,
            "{kind}: {imported:?} {parts:?}"
        );
        assert_eq!(imported.shared_bytes + imported.copied_bytes, size_of(&tensors));
        assert_same(&store, &tensors);
    });
}

#[test]
fn numpy_array_is_shared_in_both_orders() {
    on_each(|kind, image| {
        let tensor = Tensor::from_vec(noise(2 << 20, 3), &[1 << 10, 2 << 10]).unwrap();
        for order in [stridemap_interop::Order::C, stridemap_interop::Order::F] {
            let path = image.path.join("x.npy");
            npy::Export::new().order(order).write(&path, &tensor, |_| ()).unwrap();
            let store = StoreOptions::new().durability(Durability::Process);
            let store = store.create(image.path.join(format!("{order:?}.smap"))).unwrap();
            let (imported, _) = import(&store, &path);
            assert_eq!((imported.shared_bytes, imported.copied_bytes), (8 << 20, 0), "{kind} {order:?}");
            assert!(store.load("x").unwrap().storage_offset() > 0);
            assert_same(&store, &[("x".to_owned(), tensor.clone())]);
        }
    });
}

#[test]
fn unaligned_tensors_are_copied_and_not_shared() {
    on_each(|kind, image| {
        // Three bytes, then floats at an unaligned offset.
        let header = r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1048576],"data_offsets":[3,4194307]},"c":{"dtype":"U8","shape":[9000001],"data_offsets":[4194307,13194308]}}"#;
        let header = format!("{header:<240}");
        let elements: Vec<u8> = noise(13_194_308, 5).into_iter().map(|n| (n >> 24) as u8).collect();
        let path = image.path.join("m.safetensors");
        fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &elements].concat())
            .unwrap();
        let store = Store::create(image.path.join("store.smap")).unwrap();
        let (imported, _) = import(&store, &path);
        assert_eq!((imported.shared_bytes, imported.copied_bytes), (9_000_004, 4 << 20), "{kind}");
        for (name, range) in [("a", 0..3), ("b", 3..4_194_307), ("c", 4_194_307..13_194_308)] {
            assert!(store.load(name).unwrap().to_bytes().unwrap() == elements[range], "{kind} {name}");
        }
    });
}

#[test]
fn small_file_is_copied() {
    on_each(|kind, image| {
        let tensors = model();
        let path = write(&image.path.join("m.safetensors"), &tensors[2..4], &Export::new());
        let store = Store::create(image.path.join("store.smap")).unwrap();
        let (imported, _) = import(&store, &path);
        assert_eq!((imported.shared_bytes, imported.copied_bytes), (0, 2 << 20), "{kind}");
        assert_same(&store, &tensors[2..4]);
    });
}

#[test]
fn file_changed_since_it_was_opened_is_refused_and_leaves_nothing() {
    on_each(|kind, image| {
        let path = write(&image.path.join("m.safetensors"), &model(), &Export::new());
        let store = Store::create(image.path.join("store.smap")).unwrap();
        let opened = ForeignFile::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().write_all_at(b"x", 1 << 20).unwrap();
        let mut txn = store.begin().unwrap();
        let error = opened.import_into(&mut txn, "", |_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ExternalChanged, "{kind}: {error}");
        drop(txn);
        assert_eq!(fs::read_dir(image.path.join("store.smap/storages")).unwrap().count(), 0, "{kind}");
    });
}

#[test]
fn existing_name_is_refused_before_anything_is_read() {
    on_each(|kind, image| {
        let path = write(&image.path.join("m.safetensors"), &model(), &Export::new());
        let store = Store::create(image.path.join("store.smap")).unwrap();
        store.save("small.7", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).unwrap();
        let mut txn = store.begin().unwrap();
        txn.on_existing(OnExisting::Refuse);
        let file = ForeignFile::open(&path).unwrap();
        let error = file.import_into(&mut txn, "", |_| panic!("an element was read")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameExists, "{kind}: {error}");
    });
}

#[test]
fn everything_is_copied_if_blocks_cannot_be_shared() {
    let Some(disk) = Image::mount("ext4", &["mkfs.ext4", "-q"], IMAGE_BYTES) else { return };
    let tensors = model();
    let path = write(&disk.path.join("m.safetensors"), &tensors, &Export::new());
    let store = Store::create(disk.path.join("store.smap")).unwrap();
    let (imported, told_bytes) = import(&store, &path);
    assert_eq!(
        (imported.shared_bytes, imported.copied_bytes, told_bytes),
        (0, size_of(&tensors), size_of(&tensors))
    );
    assert_eq!(store.load("large").unwrap().dtype(), DType::U32);
    assert_same(&store, &tensors);
}
