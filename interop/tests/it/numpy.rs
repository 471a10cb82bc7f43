//! Reading and writing NumPy files. `tests/numpy_files.py` compares them with NumPy's own.

mod hostile;
mod npz;
mod structured;

use std::fs;

use stridemap::{DType, ErrorKind, OnExisting};
use stridemap_interop::{FileFormat, ForeignFile, ForeignOptions, Order, npy};

use crate::place::{Place, counted, logical};

pub(crate) fn npy_bytes(header: &str, elements: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\x00", (header.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), elements]
        .concat()
}

#[test]
fn every_npy_dtype_round_trips() {
    let place = Place::new();
    for &dtype in DType::ALL {
        for size in [&[][..], &[3], &[2, 3], &[2, 0, 4], &[1; 64]] {
            for order in [Order::C, Order::F] {
                let (path, tensor) = (place.path("x.npy"), counted(dtype, size));
                let mut written_bytes = 0;
                let written = npy::Export::new().order(order).write(&path, &tensor, |bytes| {
                    written_bytes += bytes;
                });
                if dtype == DType::F4E2M1FNx2 {
                    let error = written.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BadFile);
                    assert!(error.to_string().contains("NumPy cannot hold float4_e2m1fn_x2"), "{error}");
                    assert_eq!(place.names(), ["store.smap"]);
                    continue;
                }
                written.unwrap();
                assert_eq!(written_bytes, tensor.nbytes() as u64);
                // The one-byte types that NumPy lacks all have the same descriptor.
                let is_told = dtype.code() < DType::F8E4M3FN.code();
                if !is_told {
                    let error = ForeignFile::open(&path).unwrap_err();
                    assert!(error.to_string().contains("without a type"), "{error}");
                }
                let options = ForeignOptions::new();
                let options = if is_told { options } else { options.untyped(dtype) };
                let file = options.open(&path).unwrap();
                assert_eq!((file.format(), file.size_bytes()), (FileFormat::Npy, tensor.nbytes() as u64));
                assert_eq!(logical(&file.load("x").unwrap()), logical(&tensor), "{dtype} of {size:?}");
                let mut txn = place.store.begin().unwrap();
                file.import_into(&mut txn, "", |_| ()).unwrap();
                txn.commit().unwrap();
                assert_eq!(logical(&place.store.load("x").unwrap()), logical(&tensor), "{dtype} of {size:?}");
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

#[test]
fn fortran_order_is_imported_as_strides() {
    let place = Place::new();
    let header = "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }\n";
    let path = place.file("x.npy", &npy_bytes(header, &[0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0]));
    let mut txn = place.store.begin().unwrap();
    txn.on_existing(OnExisting::Refuse);
    let file = ForeignFile::open(&path).unwrap();
    file.import_into(&mut txn, "", |_| ()).unwrap();
    assert_eq!(file.import_into(&mut txn, "", |_| ()).unwrap_err().kind(), ErrorKind::NameExists);
    // Another writer commits first, so the changes are applied again, to its generation.
    place.store.save("other", &counted(DType::U8, &[1])).unwrap();
    txn.commit().unwrap();

    let tensor = place.store.load("x").unwrap();
    assert_eq!((tensor.size(), tensor.stride(), tensor.storage_offset()), (&[2, 3][..], &[1, 2][..], 0));
    assert_eq!(tensor.read::<i16>().unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(place.store.names().unwrap(), ["other", "x"]);
    assert!(place.store.verify(|_| ()).unwrap().findings.is_empty());
    place.import(&path).unwrap();
    assert_eq!(logical(&place.store.load("x").unwrap()), logical(&tensor));
}

#[test]
fn column_major_tensor_is_written_without_reordering() {
    let place = Place::new();
    let base = counted(DType::I16, &[4, 3, 2]);
    let path = place.path("x.npy");
    npy::Export::new().order(Order::F).write(&path, &base.permute([2, 1, 0]).unwrap(), |_| ()).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.ends_with(&base.to_bytes().unwrap()));
    let header = String::from_utf8_lossy(&bytes[10..128]).into_owned();
    assert!(header.contains("'fortran_order': True, 'shape': (2, 3, 4), }"), "{header}");
    let file = ForeignFile::open(&path).unwrap();
    assert_eq!(file.load("x").unwrap().stride(), [1, 2, 6]);
}

#[test]
fn big_endian_elements_are_read_as_their_values_and_are_not_adopted() {
    let place = Place::new();
    let header = |descr, shape| format!("{{'descr': '{descr}', 'fortran_order': True, 'shape': {shape}, }}");
    let elements: Vec<u8> = (0..16).collect();
    for (descr, dtype, shape, turned) in [
        (">i2", DType::I16, "(2, 4)", 2),
        (">f8", DType::F64, "(1, 2)", 8),
        (">c8", DType::C64, "(2, 1)", 4),
        (">c16", DType::C128, "(1, 1)", 8),
        (">u1", DType::U8, "(4, 4)", 1),
    ] {
        let path = place.file("x.npy", &npy_bytes(&header(descr, shape), &elements));
        let file = ForeignFile::open(&path).unwrap();
        let expected: Vec<u8> =
            elements.chunks(turned).flat_map(|number| number.iter().rev()).copied().collect();
        let mut txn = place.store.begin().unwrap();
        file.import_into(&mut txn, "", |_| ()).unwrap();
        txn.commit().unwrap();
        for tensor in [place.store.load("x").unwrap(), file.load("x").unwrap()] {
            let axes: Vec<isize> = (0..tensor.ndim() as isize).rev().collect();
            assert_eq!(tensor.dtype(), dtype);
            assert_eq!(
                tensor.permute(axes.iter().copied()).unwrap().to_bytes().unwrap(),
                expected,
                "{descr}"
            );
        }
        let adopted = file.adopt_into(&mut place.store.begin().unwrap(), "");
        let is_adopted = adopted.as_ref().is_err_and(|e| e.kind() != ErrorKind::BadFile);
        assert_eq!(is_adopted, turned == 1, "{adopted:?}");
    }
}

#[test]
fn untyped_elements_get_the_requested_type() {
    let place = Place::new();
    let options = |dtype| ForeignOptions::new().untyped(dtype);
    for (descr, dtype, expected) in [
        ("|V1", DType::F8E8M0FNU, Ok([1, 2, 3, 4])),
        ("<V1", DType::U8, Ok([1, 2, 3, 4])),
        ("|V2", DType::BF16, Ok([1, 2, 3, 4])),
        (">V2", DType::BF16, Ok([2, 1, 4, 3])),
        ("<V2", DType::F16, Ok([1, 2, 3, 4])),
        ("|V2", DType::F8E5M2, Err("if they are bfloat16")),
        ("|V1", DType::BF16, Err("state their type")),
        ("|V1", DType::F4E2M1FNx2, Err("two into a byte")),
        ("|O", DType::F64, Err("pickle")),
    ] {
        let count = if descr.ends_with('2') { 2 } else { 4 };
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}");
        let path = place.file("x.npy", &npy_bytes(&header, &[1, 2, 3, 4]));
        match (options(dtype).open(&path), expected) {
            (Ok(file), Ok(bytes)) => {
                let tensor = file.load("x").unwrap();
                let dtype = if descr == "<V2" { DType::BF16 } else { dtype };
                assert_eq!((tensor.dtype(), tensor.to_bytes().unwrap()), (dtype, bytes.to_vec()), "{descr}");
            }
            (Err(error), Err(what)) => assert!(error.to_string().contains(what), "{error}"),
            (opened, _) => panic!("{descr}: {opened:?}"),
        }
    }
}

#[test]
fn npy_headers_of_every_version_spelling_and_order_of_keys_are_read() {
    let place = Place::new();
    for header in [
        "{'descr':'<f4','fortran_order':False,'shape':(2,)}",
        " { \"shape\" : ( 2 , ) , 'fortran_order' : False , 'descr' : '=f4' , } \n",
        "{'descr': 'f4', 'fortran_order': False, 'shape': (1, 2,)}",
        "{'descr': 'float32', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '|f4', 'fortran_order': False, 'shape': (2,)}",
        "{u'descr': u'<f4', u'fortran_order': False, u\"shape\": (2,)}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }",
    ] {
        let elements = 1.5f32.to_le_bytes().repeat(2);
        let length = (header.len() as u32).to_le_bytes();
        let late = |version| {
            [b"\x93NUMPY".as_slice(), &[version, 0], &length, header.as_bytes(), &elements].concat()
        };
        for bytes in [npy_bytes(header, &elements), late(2), late(3)] {
            place.import(&place.file("x.npy", &bytes)).unwrap();
            assert_eq!(place.store.load("x").unwrap().read::<f32>().unwrap(), [1.5, 1.5], "{header}");
        }
    }
}

#[test]
fn malformed_npy_headers_are_refused_with_the_reason() {
    let place = Place::new();
    let plain =
        |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}");
    for (header, what) in [
        (plain("'|O'", "(2,)"), "Python objects"),
        (plain("'<V1'", "(8,)"), "state their type"),
        (plain("'|V2'", "(4,)"), "if they are bfloat16, say so"),
        (plain("'|V8'", "(1,)"), "without a type"),
        (plain("'<M8[s]'", "(1,)"), "times"),
        (plain("'<f16'", "(1,)"), "a type that stridemap does not have"),
        (plain("'é'", "(1,)"), "a type that stridemap does not have"),
        (plain("''", "(1,)"), "a type that stridemap does not have"),
        (plain("'>'", "(1,)"), "a type that stridemap does not have"),
        (plain("'|V2'", "(4,)"), "\"|V2\""),
        (plain("'<U2'", "(1,)"), "\"<U2\""),
        (plain("[]", "(2,)"), "structures without fields"),
        (plain("[('', '|V4')]", "(2,)"), "structures without fields"),
        (plain("[('a', '<f4'", "(2,)"), "expected \"(\""),
        (plain("[('a', '<f4') 7", "(2,)"), "expected \"]\""),
        (plain("['a', '<f4']", "(2,)"), "expected \"(\""),
        (plain("[('a', [('b', '<f4')])]", "(2,)"), "the field \"a\" is a structure itself"),
        (
            plain("[('a', '<f4'), ('b', '|O')]", "(2,)"),
            "the field \"b\": the elements (descr \"|O\") are Python",
        ),
        (plain("[('a', '<U1')]", "(2,)"), "the field \"a\": the elements (descr \"<U1\") are strings"),
        (plain("[('', '<f4')]", "(2,)"), "the field \"\": it has no name"),
        (plain("[('a\\\\', '<f4')]", "(2,)"), "backslash"),
        (plain("[('a', '<f4'), ('a', '<f4')]", "(1,)"), "two tensors are named \"x.a\""),
        (
            plain("[('a', '<f4', (4611686018427387904,))]", "(2,)"),
            "the field \"a\": shape [4611686018427387904]",
        ),
        (plain("[('a', '<f4', (2305843009213693951,))]", "(4,)"), "shape [4] is too large"),
        (
            plain("[('a', '|V18446744073709551615'), ('b', '|V1')]", "(2,)"),
            "the field \"b\": shape [] is too large",
        ),
        (plain("[('a', '<f4')]", "(3,)"), "12 bytes of elements"),
        (plain("'<f4'", "(2)"), "expected \",\""),
        (plain("'<f4'", "(-2,)"), "expected a size"),
        (plain("'<f4'", "(,)"), "expected a size"),
        (plain("'<f4'", "(99999999999999999999,)"), "expected a size"),
        (plain("'<f4'", "(2, 1"), "expected \")\""),
        (plain("'<f4'", "2"), "expected \"(\""),
        (plain("'<f4'", "(3,)"), "12 bytes of elements"),
        (plain("'<f4'", "(1,)"), "4 bytes of elements"),
        (plain("'<f4'", "(4294967296, 4294967296)"), "too large"),
        (plain("'<f4'", "(4294967296, 4294967296, 0)"), "0 bytes of elements"),
        (plain("'<f4'", "(4611686018427387904,)"), "too large"),
        (plain("'<f4'", "(2,)") + "}", "expected the end"),
        (plain("'<f4'", "(2,), 'shape': (2,)"), "twice"),
        (plain("'<f4'", "(2,), 'x': (2,)"), "unknown key"),
        (plain("'<f4'", "(2,),, "), "expected a string"),
        (plain("'<f4", "(2,)"), "expected \"}\""),
        ("{'descr': '<f4', 'shape': (2,)}".to_owned(), "no \"fortran_order\""),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}".to_owned(), "expected \"False\""),
        ("{}".to_owned(), "no \"descr\""),
        (String::new(), "expected \"{\""),
        ("(".repeat(60_000), "expected \"{\""),
    ] {
        let message = place.refuse("x.npy", &npy_bytes(&header, &[0; 8]));
        assert!(message.contains(what), "{message}, and not {what}");
    }
    let good = npy_bytes(&plain("'<f4'", "(2,)"), &[0; 8]);
    for (at, bytes, what) in [
        (0, &b"X"[..], "not a file of a supported format"),
        (6, &[4], "version 4.0"),
        (7, &[1], "version 1.1"),
        (8, &[0xff, 0xff], "65535 bytes"),
        (6, &[2, 0, 0xff, 0xff, 0xff, 0xff], "4294967295 bytes"),
        (10, &[0xff], "expected \"{\""),
    ] {
        let mut broken = good.clone();
        broken[at..at + bytes.len()].copy_from_slice(bytes);
        let message = place.refuse("x.npy", &broken);
        assert!(message.contains(what), "{message}, and not {what}");
    }
}
