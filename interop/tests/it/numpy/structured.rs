//! Structured arrays: one view for each field, over one storage.

use stridemap::{DType, ErrorKind, ExternalFiles, StoreOptions};
use stridemap_interop::{ForeignFile, ForeignOptions};

use super::hostile::{DEFLATED, STORED, zip_of};
use super::npy_bytes;
use crate::place::Place;

/// 16 bytes: two kinds of numbers, padding, and a small array.
const FIELDS: &str = "[('x', '<f4'), (('a title', 'y'), '<i2'), ('', '|V2'), ('z', '<u4', (2,))]";

/// Returns an array of six structures of 16 bytes, whose bytes count up.
fn structured(descr: &str, order: &str, shape: &str) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
    npy_bytes(&header, &(0..96).collect::<Vec<_>>())
}

#[test]
fn fields_become_views_of_one_storage() {
    let place = Place::new();
    let array = structured(FIELDS, "False", "(2, 3)");
    for path in [
        place.file("s.npy", &array),
        place.file("stored.npz", &zip_of(&[("s.npy", STORED, &array)])),
        place.file("deflated.npz", &zip_of(&[("s.npy", DEFLATED, &array)])),
    ] {
        let file = ForeignFile::open(&path).unwrap();
        assert_eq!((file.storages().count(), file.size_bytes()), (1, 96));
        let mut read_bytes = 0;
        let mut txn = place.store.begin().unwrap();
        file.import_into(&mut txn, "", |bytes| read_bytes += bytes).unwrap();
        txn.commit().unwrap();
        assert_eq!((read_bytes, place.store.names().unwrap().join(" ")), (96, "s.x s.y s.z".to_owned()));
        for load in [&|name| file.load(name), &|name| place.store.load(name)] as [&dyn Fn(&str) -> _; 2] {
            let (x, y, z) = (load("s.x").unwrap(), load("s.y").unwrap(), load("s.z").unwrap());
            assert_eq!((x.dtype(), x.size(), x.stride()), (DType::F32, &[2, 3][..], &[12, 4][..]));
            assert_eq!((y.dtype(), y.stride(), y.storage_offset()), (DType::I16, &[24, 8][..], 2));
            assert_eq!((z.size(), z.stride(), z.storage_offset()), (&[2, 3, 2][..], &[12, 4, 1][..], 2));
            assert!(x.shares_storage(&y) && y.shares_storage(&z));
            let start = |at: u8| at..at + 4;
            assert_eq!(x.to_bytes().unwrap(), (0..6).flat_map(|i| start(16 * i)).collect::<Vec<u8>>());
            assert_eq!(y.to_bytes().unwrap()[2..4], [20, 21]);
            assert_eq!(z.to_bytes().unwrap()[8..16], (24..32).collect::<Vec<u8>>());
        }
    }
    assert!(place.store.verify(|_| ()).unwrap().findings.is_empty());
}

#[test]
fn structured_array_in_fortran_order_keeps_its_order() {
    let place = Place::new();
    let path = place.file("s.npy", &structured(FIELDS, "True", "(2, 3)"));
    let file = ForeignFile::open(&path).unwrap();
    assert_eq!(file.load("s.x").unwrap().stride(), [4, 8]);
    assert_eq!(file.load("s.z").unwrap().stride(), [4, 8, 1]);
    for shape in ["(6,)", "(6, 1, 1)"] {
        let path = place.file("s.npy", &structured(FIELDS, "False", shape));
        assert_eq!(ForeignFile::open(&path).unwrap().load("s.x").unwrap().numel(), 6);
    }
}

#[test]
fn structured_array_without_elements_or_dimensions_is_read() {
    let place = Place::new();
    let header = |shape: &str| format!("{{'descr': {FIELDS}, 'fortran_order': False, 'shape': {shape}, }}");
    place.import(&place.file("none.npy", &npy_bytes(&header("(0, 2)"), &[]))).unwrap();
    assert_eq!(place.store.load("none.z").unwrap().size(), [0, 2, 2]);
    place.import(&place.file("one.npy", &npy_bytes(&header("()"), &[7; 16]))).unwrap();
    assert_eq!(place.store.load("one.y").unwrap().read::<i16>().unwrap(), [0x0707]);
    let empty = "{'descr': [('a', '<f4', (0,)), ('b', '<f4')], 'fortran_order': False, 'shape': (2,), }";
    place.import(&place.file("empty.npy", &npy_bytes(empty, &[0; 8]))).unwrap();
    assert_eq!(place.store.load("empty.a").unwrap().size(), [2, 0]);
}

#[test]
fn big_endian_fields_of_one_size_are_swapped_together() {
    let place = Place::new();
    let options = ForeignOptions::new();
    let path = place.file("s.npy", &structured("[('a', '>i4'), ('b', '>f4', (3,))]", "False", "(6,)"));
    let file = options.open(&path).unwrap();
    file.import_into(&mut place.store.begin().unwrap(), "", |_| ()).unwrap();
    assert_eq!(file.load("s.a").unwrap().to_bytes().unwrap()[..8], [3, 2, 1, 0, 19, 18, 17, 16]);
    assert_eq!(file.load("s.b").unwrap().to_bytes().unwrap()[..4], [7, 6, 5, 4]);
    // A field in a different byte order, or of numbers of a different size, is copied.
    for (other, in_record) in [
        ("('b', '<i4'), ('', '|V8')", vec![4, 5, 6, 7]),
        ("('b', '>i2', (2,)), ('', '|V8')", vec![5, 4, 7, 6]),
        ("('b', '|u1', (12,))", (4..16).collect()),
        ("('', '|V4'), ('b', '>f8')", (8..16).rev().collect()),
    ] {
        let descr = format!("[('a', '>i4'), {other}]");
        let path = place.file("s.npy", &structured(&descr, "False", "(6,)"));
        let file = options.open(&path).unwrap();
        let expected: Vec<u8> =
            (0..6).flat_map(|i| in_record.iter().map(move |byte| 16 * i + byte)).collect();
        assert_eq!(file.load("s.a").unwrap().to_bytes().unwrap()[..8], [3, 2, 1, 0, 19, 18, 17, 16]);
        assert_eq!(file.load("s.b").unwrap().to_bytes().unwrap(), expected, "{other}");
    }
}

#[test]
fn packed_fields_are_copied_in_any_order_and_packing() {
    const PACKED: &str = "[('a', '|u1'), ('b', '<f4'), ('c', '<i2', (2,)), ('d', '|V3'), ('e', '>i4')]";
    let options = ForeignOptions::new();
    for (order, shape, strides) in
        [("False", "(2, 3)", [[3, 1], [6, 2]]), ("True", "(2, 3)", [[1, 2], [2, 4]])]
    {
        let place = Place::new();
        let array = structured(PACKED, order, shape);
        for path in [
            place.file("s.npy", &array),
            place.file("stored.npz", &zip_of(&[("s.npy", STORED, &array)])),
            place.file("deflated.npz", &zip_of(&[("s.npy", DEFLATED, &array)])),
        ] {
            let skipping = options.skip_unreadable(true);
            let file = skipping.open(&path).unwrap();
            assert_eq!(file.skipped().iter().map(|skipped| &*skipped.name).collect::<Vec<_>>(), ["s.d"]);
            let mut txn = place.store.begin().unwrap();
            file.import_into(&mut txn, "", |_| ()).unwrap();
            txn.commit().unwrap();
            let in_file = |name: &str| file.load(name).unwrap();
            let in_store = |name: &str| place.store.load(name).unwrap();
            for load in [&in_file, &in_store] as [&dyn Fn(&str) -> stridemap::Tensor; 2] {
                // The records in the order of the file.
                let bytes = |name: &str| {
                    let tensor = load(name);
                    let ndim = tensor.ndim() as isize;
                    let in_order = if order == "True" && ndim > 1 {
                        let mut axes = vec![1, 0];
                        axes.extend(2..ndim);
                        tensor.permute(axes.iter().copied()).unwrap()
                    } else {
                        tensor
                    };
                    in_order.to_bytes().unwrap()
                };
                let expected = |within: &[u8]| -> Vec<u8> {
                    (0..6).flat_map(|i| within.iter().map(move |byte| 16 * i + byte)).collect()
                };
                assert_eq!(bytes("s.a"), expected(&[0]));
                assert_eq!(bytes("s.b"), expected(&[1, 2, 3, 4]));
                assert_eq!(bytes("s.c"), expected(&[5, 6, 7, 8]));
                assert_eq!(bytes("s.e"), expected(&[15, 14, 13, 12]));
                assert_eq!(load("s.b").stride(), strides[0]);
                assert_eq!(load("s.c").stride()[..2], strides[1]);
            }
            let error = file.check_adoptable().unwrap_err().to_string();
            assert!(error.contains("not aligned in their structures"), "{error}");
        }
    }
}

/// The file is read in pieces of 4 MiB, which no record of 13 bytes divides.
#[test]
fn packed_fields_of_many_records_are_read_in_pieces() {
    const COUNT: usize = 700_000;
    let place = Place::new();
    let bytes: Vec<u8> = (0..13 * COUNT).map(|at| (at % 251) as u8 ^ (at / 4099) as u8).collect();
    let header = format!(
        "{{'descr': [('a', '|u1'), ('b', '<i4'), ('c', '>i8')], 'fortran_order': False, 'shape': ({COUNT},), }}"
    );
    let array = npy_bytes(&header, &bytes);
    for path in [
        place.file("s.npy", &array),
        place.file("stored.npz", &zip_of(&[("s.npy", STORED, &array)])),
        place.file("deflated.npz", &zip_of(&[("s.npy", DEFLATED, &array)])),
    ] {
        let file = ForeignOptions::new().open(&path).unwrap();
        let mut txn = place.store.begin().unwrap();
        file.import_into(&mut txn, "", |_| ()).unwrap();
        txn.commit().unwrap();
        for (name, within, is_swapped) in [("s.a", 0..1, false), ("s.b", 1..5, false), ("s.c", 5..13, true)] {
            let field = |record: &[u8]| {
                let mut field = record[within.clone()].to_vec();
                if is_swapped {
                    field.reverse();
                }
                field
            };
            let expected: Vec<u8> = bytes.chunks(13).flat_map(field).collect();
            assert!(file.load(name).unwrap().to_bytes().unwrap() == expected, "{name} of {path:?}");
            assert!(
                place.store.load(name).unwrap().to_bytes().unwrap() == expected,
                "{name} of {path:?}, imported"
            );
        }
    }
}

#[test]
fn unreadable_fields_are_left_out_and_named() {
    let place = Place::new();
    let descr = "[('name', '<U2'), ('when', '<M8[ns]'), ('x', '<f4'), ('y', '<V4'), ('', '|V8')]";
    let bytes = structured(descr, "False", "(3,)");
    let options = ForeignOptions::new().skip_unreadable(true);
    for path in [place.file("s.npy", &bytes), place.file("s.npz", &zip_of(&[("s.npy", STORED, &bytes)]))] {
        let file = options.open(&path).unwrap();
        let skipped: Vec<&str> = file.skipped().iter().map(|skipped| skipped.name.as_str()).collect();
        assert_eq!(skipped, ["s.name", "s.when", "s.y"]);
        assert!(file.skipped()[1].reason.to_string().contains("the field \"when\": the elements"));
        assert_eq!(file.load("s.x").unwrap().stride(), [8]);
    }
}

#[test]
fn fields_can_be_adopted() {
    let place = Place::new();
    let path = place.file("s.npy", &structured(FIELDS, "False", "(6,)"));
    let store =
        StoreOptions::new().external(ExternalFiles::Beside).create(place.path("adopted.smap")).unwrap();
    stridemap_interop::adopt(&store, &path, "").unwrap();
    assert_eq!(store.load("s.y").unwrap().to_bytes().unwrap()[2..4], [20, 21]);
}

#[test]
fn fields_of_all_members_together_are_limited() {
    let place = Place::new();
    let fields: Vec<String> = (0..1500).map(|i| format!("('{i}', '|u1')")).collect();
    let descr = format!("[{}]", fields.join(", "));
    let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (0,), }}");
    let array = npy_bytes(&header, &[]);
    let names: Vec<String> = (0..5).map(|i| i.to_string()).collect();
    let members: Vec<_> = names.iter().map(|name| (name.as_str(), DEFLATED, array.as_slice())).collect();
    let error = ForeignFile::open(place.file("x.npz", &zip_of(&members))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert!(error.to_string().contains("of memory, the limit"), "{error}");
    assert!(ForeignFile::open(place.file("x.npz", &zip_of(&members[..2]))).is_ok());
}
