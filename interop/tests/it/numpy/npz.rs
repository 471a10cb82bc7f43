//! Reading and writing `.npz` files.

use std::fs;

use stridemap::{DType, ErrorKind, ExternalFiles, StoreOptions, Tensor};
use stridemap_interop::npz::{self, Packing};
use stridemap_interop::{FileFormat, ForeignFile, ForeignOptions, Order};

use super::hostile::{DEFLATED, STORED, zip_of};
use super::npy_bytes;
use crate::place::{Place, counted, logical};

fn named(tensors: &[(&str, Tensor)]) -> Vec<(String, Tensor)> {
    tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect()
}

/// Returns names that look like paths, views, and more elements than are read at once.
fn tensors() -> Vec<(String, Tensor)> {
    let base = counted(DType::F32, &[6, 5]);
    let long = Tensor::from_vec((0..1_500_000u32).collect(), &[1000, 1500]).unwrap();
    named(&[
        ("up/./down", base.clone()),
        ("..x", base.t().unwrap()),
        ("a.npy", base.flip([0]).unwrap()),
        ("CC:x", counted(DType::Bool, &[3])),
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
        let expected = tensor.permute(axes.iter().copied()).unwrap().to_bytes().unwrap();
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
    assert!(error.to_string().contains("\"up/./down\" are compressed"), "{error}");
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

/// Returns an array with this descriptor and shape.
fn array(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    npy_bytes(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"), elements)
}

#[test]
fn unreadable_members_are_left_out_and_listed_with_the_reason() {
    let place = Place::new();
    let good = array("'|u1'", "(2,)", &[1, 2]);
    let path = place.file(
        "x.npz",
        &zip_of(&[
            ("object.npy", STORED, &array("'|O'", "(1,)", b"\x80\x04.")),
            ("good.npy", STORED, &good),
            ("names.npy", DEFLATED, &array("'<U1'", "(2,)", &[97, 0, 0, 0, 98, 0, 0, 0])),
            ("readme.txt", STORED, b"text that is long enough"),
            ("cut.npy", DEFLATED, &good[..20]),
        ]),
    );
    assert_eq!(ForeignFile::open(&path).unwrap_err().kind(), ErrorKind::BadFile);
    let file = ForeignOptions::new().skip_unreadable(true).open(&path).unwrap();
    let expected = [
        ("object", "pickle"),
        ("names", "strings"),
        ("readme.txt", "not a NumPy array"),
        ("cut", "ends after"),
    ];
    assert_eq!(file.skipped().len(), expected.len());
    for (skipped, (name, reason)) in file.skipped().iter().zip(expected) {
        assert_eq!(skipped.name, name);
        assert!(skipped.reason.to_string().contains(reason), "{}", skipped.reason);
    }
    file.import_into(&mut place.store.begin().unwrap(), "", |_| ()).unwrap();
    assert_eq!(file.load("good").unwrap().read::<u8>().unwrap(), [1, 2]);
    assert_eq!(file.tensors().count(), 1);
}

#[test]
fn text_of_no_dimension_becomes_an_attribute() {
    let place = Place::new();
    let wide = |text: &str| text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect::<Vec<_>>();
    let big: Vec<u8> = "aü".chars().flat_map(|c| u32::from(c).to_be_bytes()).collect();
    let path = place.file(
        "x.npz",
        &zip_of(&[
            ("title.npy", DEFLATED, &array("'<U7'", "()", &wide("nö\u{1f600} x\0\0"))),
            ("big.npy", STORED, &array("'>U2'", "()", &big)),
            ("bytes.npy", STORED, &array("'|S4'", "()", b"ab\0\0")),
            ("empty.npy", STORED, &array("'<U0'", "()", b"")),
            ("x.npy", STORED, &array("'|u1'", "()", &[7])),
        ]),
    );
    stridemap_interop::import(&place.store, &path, "").unwrap();
    let attributes = place.store.attributes("");
    let attributes: Vec<_> = attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(attributes, [("big", "aü"), ("bytes", "ab"), ("empty", ""), ("title", "nö\u{1f600} x")]);
    assert_eq!(place.store.names().unwrap(), ["x"]);

    for (descr, elements, what) in [
        ("'|S2'", &b"\xff\xfe"[..], "not UTF-8"),
        ("'<U1'", &[0, 0, 0x11, 0], "not a character"),
        ("'<U1'", b"abc", "describes 4 bytes of elements, but 3 bytes follow it"),
        ("'|S2'", &[b'a'; 400], "describes 2 bytes of elements, but 400 bytes follow it"),
        ("'|S5000000'", &vec![b'a'; 5_000_000], "of memory, the limit"),
    ] {
        let bytes = zip_of(&[("x.npy", DEFLATED, &array(descr, "()", elements))]);
        let message = place.refuse("bad.npz", &bytes);
        assert!(message.contains(what), "{message}, and not {what}");
    }
    let (text, other) = (array("'|S1'", "()", b"a"), array("'|S1'", "()", b"b"));
    let bytes = zip_of(&[("a", STORED, &text), ("a.npy", STORED, &other)]);
    let message = place.refuse("bad.npz", &bytes);
    assert!(message.contains("another text has the same name"), "{message}");
    let path = place.file("bad.npz", &bytes);
    let file = ForeignOptions::new().skip_unreadable(true).open(&path).unwrap();
    assert_eq!(file.attributes()["a"], "a", "the second text is left out");
}

#[test]
fn compressed_arrays_that_are_left_out_do_not_prevent_use_in_place() {
    let place = Place::new();
    let path = place.file(
        "mixed.npz",
        &zip_of(&[
            ("keep.npy", STORED, &array("'|u1'", "(4,)", &[1, 2, 3, 4])),
            ("big.npy", DEFLATED, &array("'|u1'", "(4000,)", &[7; 4000])),
        ]),
    );
    let mut file = ForeignFile::open(&path).unwrap();
    file.rename(|name| (name == "keep").then(|| name.to_owned())).unwrap();
    let store = StoreOptions::new().external(ExternalFiles::Beside).open(place.store.path()).unwrap();
    store.write(|txn| file.adopt_into(txn, "")).unwrap();
    assert_eq!(store.load("keep").unwrap().read::<u8>().unwrap(), [1, 2, 3, 4]);
    assert_eq!(store.snapshot().storages().count(), 1);
}

#[test]
fn names_that_lead_out_of_a_directory_are_changed_without_collisions() {
    let place = Place::new();
    let names = [
        "../x",
        "_/x",
        "/abs",
        "abs",
        "a/../../b",
        "..",
        "C:\\w",
        "c:/w",
        "\\\\server\\x",
        "//",
        "a/..",
        "../y",
        "_/y.npy",
        "plain/z",
        "a\\b",
        "a_b",
        "é:x",
        "../x_2",
        "/C:/y",
        "\\/D:x",
    ];
    let tensors: Vec<_> = (0u8..)
        .zip(names)
        .map(|(i, name)| (name.to_owned(), Tensor::from_vec(vec![i], &[1]).unwrap()))
        .collect();
    let path = place.path("x.npz");
    let changed = npz::Export::new().write(&path, &tensors, |_| ()).unwrap();
    let expected = [
        ("../x", "_/x_2"),
        ("/abs", "abs_2"),
        ("a/../../b", "a/_/_/b"),
        ("..", "_"),
        ("C:\\w", "C__w"),
        ("c:/w", "c_/w"),
        ("\\\\server\\x", "__server_x"),
        ("//", "__2"),
        ("a/..", "a/_"),
        ("../y", "_/y_2"),
        ("a\\b", "a_b_2"),
        ("../x_2", "_/x_2_2"),
        ("/C:/y", "C_/y"),
        ("\\/D:x", "_/D:x"),
    ];
    assert_eq!(changed, expected.map(|(name, array)| (name.to_owned(), array.to_owned())));
    let file = ForeignFile::open(&path).unwrap();
    for (index, info) in file.tensors().enumerate() {
        assert_eq!(file.load(&info.name).unwrap().read::<u8>().unwrap(), [index as u8], "{}", info.name);
        let is_inside =
            info.name.split(['/', '\\']).all(|part| part != "..") && !info.name.starts_with(['/', '\\']);
        assert!(is_inside && info.name.get(1..2) != Some(":"), "{}", info.name);
    }
    assert_eq!(file.tensors().count(), names.len());
}
