//! Reading and writing `.npz` files.

use std::fs;

use stridemap::{DType, ErrorKind, ExternalFiles, StoreOptions, Tensor};
use stridemap_interop::npz::{self, Packing};
use stridemap_interop::{FileFormat, ForeignFile, Order};

use crate::place::{Place, counted, logical};

fn named(tensors: &[(&str, Tensor)]) -> Vec<(String, Tensor)> {
    tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect()
}

/// Returns names that look like paths, views, and more elements than are read at once.
fn tensors() -> Vec<(String, Tensor)> {
    let base = counted(DType::F32, &[6, 5]);
    let long = Tensor::from_vec((0..1_500_000u32).collect(), &[1000, 1500]).unwrap();
    named(&[
        ("../../escape", base.clone()),
        ("/absolute", base.t().unwrap()),
        ("a.npy", base.flip([0]).unwrap()),
        ("C:\\x", counted(DType::Bool, &[3])),
        ("müsli ", counted(DType::C128, &[])),
        ("none", counted(DType::BF16, &[2, 0, 3])),
        ("long", long.t().unwrap()),
        ("deep", counted(DType::U8, &[1; 64])),
    ])
}

const ALL: [(Order, Packing); 4] = [
    (Order::C, Packing::Stored),
    (Order::F, Packing::Stored),
    (Order::C, Packing::Deflated),
    (Order::F, Packing::Deflated),
];

#[test]
fn tensors_round_trip_in_any_order_and_packing() {
    let place = Place::new();
    let tensors = tensors();
    let size_bytes: u64 = tensors.iter().map(|(_, tensor)| tensor.nbytes() as u64).sum();
    for (order, packing) in ALL {
        let path = place.path("x.npz");
        let (mut written_bytes, mut read_bytes) = (0, 0);
        npz::Export::new()
            .order(order)
            .packing(packing)
            .write(&path, &tensors, |n| written_bytes += n)
            .unwrap();
        let first = fs::read(&path).unwrap();
        npz::Export::new().order(order).packing(packing).write(&path, &tensors, |_| ()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "the same tensors, a different file");

        let file = ForeignFile::open(&path).unwrap();
        assert_eq!((file.format(), file.size_bytes()), (FileFormat::Npz, size_bytes));
        assert!(file.tensors().map(|tensor| tensor.name).eq(tensors.iter().map(|(name, _)| name.clone())));
        let mut txn = place.store.begin().unwrap();
        file.import_into(&mut txn, "in ", |bytes| read_bytes += bytes).unwrap();
        txn.commit().unwrap();
        assert_eq!((written_bytes, read_bytes), (size_bytes, size_bytes));
        for (name, tensor) in &tensors {
            let imported = place.store.load(&format!("in {name}")).unwrap();
            assert_eq!(logical(&imported), logical(tensor), "{name}");
            let loaded = file.load(name).unwrap();
            assert_eq!(logical(&loaded), logical(tensor), "{name}");
            assert_eq!(loaded.stride(), imported.stride(), "{name}");
            if tensor.numel() > 1 && tensor.ndim() > 1 {
                assert_eq!(loaded.is_contiguous(), order == Order::C, "{name}");
            }
        }
        assert_eq!(place.names(), ["store.smap", "x.npz"]);
    }
}

#[test]
fn stored_arrays_are_aligned_for_mapping_and_can_be_adopted() {
    let place = Place::new();
    let tensors = tensors();
    let path = place.path("x.npz");
    npz::Export::new().order(Order::F).write(&path, &tensors, |_| ()).unwrap();
    let bytes = fs::read(&path).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    for (storage, (name, tensor)) in file.storages().zip(&tensors) {
        let start = storage.offset_bytes as usize;
        assert_eq!((start % 64, storage.size_bytes), (0, tensor.nbytes() as u64), "{name}");
        let axes: Vec<isize> = (0..tensor.ndim() as isize).rev().collect();
        let expected = tensor.permute(&axes).unwrap().to_bytes().unwrap();
        assert!(bytes[start..].starts_with(&expected), "{name}");
    }

    let options = StoreOptions::new().external(ExternalFiles::Beside);
    let store = options.create(place.path("adopted.smap")).unwrap();
    stridemap_interop::adopt(&store, &path, "").unwrap();
    for (name, tensor) in &tensors {
        assert_eq!(logical(&store.load(name).unwrap()), logical(tensor), "{name}");
    }
    npz::Export::new().order(Order::F).packing(Packing::Deflated).write(&path, &tensors, |_| ()).unwrap();
    let error = stridemap_interop::adopt(&store, &path, "again ").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert!(error.to_string().contains("\"../../escape\" are compressed"), "{error}");
}

#[test]
fn compressed_zeros_are_small_and_round_trip() {
    let place = Place::new();
    let zeros = Tensor::zeros(DType::F64, &[1 << 21]).unwrap();
    let path = place.path("x.npz");
    let one = named(&[("zeros", zeros.clone())]);
    npz::Export::new().packing(Packing::Deflated).write(&path, &one, |_| ()).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 40_000);
    place.import(&path).unwrap();
    assert_eq!(logical(&place.store.load("zeros").unwrap()), logical(&zeros));
}

#[test]
fn names_that_numpy_would_confuse_are_refused_before_anything_is_written() {
    let place = Place::new();
    let path = place.file("x.npz", b"old");
    let byte = counted(DType::U8, &[1]);
    for (names, what) in [
        (["a", "b", "a"], "\"a\" is given twice"),
        (["a", "x\0y", "b"], "contains a NUL"),
        (["a.npy", "b", "a"], "NumPy would confuse the name \"a.npy\" with the one"),
    ] {
        let tensors = named(&names.map(|name| (name, byte.clone())));
        let written = npz::Export::new().write(&path, &tensors, |_| panic!("an element was written"));
        let error = written.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadFile);
        assert!(error.to_string().contains(what), "{error}");
    }
    let pairs = named(&[("good", byte), ("pairs", counted(DType::F4E2M1FNx2, &[2]))]);
    let written = npz::Export::new().write(&path, &pairs, |_| ());
    assert!(written.unwrap_err().to_string().contains("tensor \"pairs\": NumPy cannot hold"));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(place.names(), ["store.smap", "x.npz"]);
}

#[test]
fn npz_file_without_arrays_is_valid() {
    let place = Place::new();
    let path = place.path("x.npz");
    npz::Export::new().write(&path, &[], |_| ()).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    assert_eq!((file.format(), file.tensors().count()), (FileFormat::Npz, 0));
}

#[test]
fn file_removed_before_it_is_adopted_is_refused() {
    let place = Place::new();
    let path = place.path("x.npz");
    npz::Export::new().write(&path, &tensors(), |_| ()).unwrap();
    let options = StoreOptions::new().external(ExternalFiles::Beside);
    let store = options.create(place.path("adopted.smap")).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let error = file.adopt_into(&mut store.begin().unwrap(), "").unwrap_err();
    // It depends on the file system whether the path is still resolved.
    assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::ExternalChanged), "{error}");
    assert!(store.names().unwrap().is_empty());
}
