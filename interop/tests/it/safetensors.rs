//! Valid and malformed safetensors files. Models in several files are in `shards.rs`.

use std::collections::BTreeMap;
use std::fs;

use stridemap::{DType, ErrorKind, Tensor};
use stridemap_interop::{ForeignFile, ForeignOptions, safetensors};

use crate::place::{Place, counted, logical};

fn safetensors_bytes(header: &str, elements: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements].concat()
}

#[test]
fn every_safetensors_dtype_round_trips() {
    let place = Place::new();
    let mut tensors: Vec<(String, Tensor)> = DType::ALL
        .iter()
        .filter(|&&dtype| dtype != DType::C128)
        .map(|&dtype| (format!("{dtype} / ü"), counted(dtype, &[2, 3])))
        .collect();
    tensors.push(("scalar".to_owned(), counted(DType::F64, &[])));
    tensors.push(("empty".to_owned(), counted(DType::I16, &[0, 4])));
    let metadata = BTreeMap::from([("format", "pt"), ("a \"b\"", "c\n")].map(|(k, v)| (k.into(), v.into())));
    let path = place.path("all.safetensors");
    let mut written_bytes = 0;
    safetensors::Export::new()
        .metadata(&metadata)
        .write(&path, &tensors, |bytes| written_bytes += bytes)
        .unwrap();

    let file = ForeignFile::open(&path).unwrap();
    assert_eq!(file.attributes(), &metadata);
    assert_eq!(file.tensors().count(), tensors.len());
    let mut read_bytes = 0;
    let mut txn = place.store.begin().unwrap();
    file.import_into(&mut txn, "in/", |bytes| read_bytes += bytes).unwrap();
    txn.commit().unwrap();
    assert_eq!((written_bytes, read_bytes), (file.size_bytes(), file.size_bytes()));
    let storages: Vec<_> = file.storages().collect();
    assert_eq!((storages.len(), storages[0].tensor_count), (1, tensors.len() as u64));
    for (name, tensor) in &tensors {
        assert_eq!(logical(&place.store.load(&format!("in/{name}")).unwrap()), logical(tensor), "{name}");
        assert_eq!(logical(&file.load(name).unwrap()), logical(tensor), "{name}");
    }
    assert!(place.store.attributes("").is_empty());
    let error = file.load("float32 / u").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NameNotFound);
    assert!(error.to_string().contains("all.safetensors") && error.to_string().contains("float32 / ü"));
}

#[test]
fn tensors_are_written_by_alignment_then_name() {
    let place = Place::new();
    let names = [("z", DType::F64), ("b", DType::U8), ("a", DType::U8), ("c", DType::F32)];
    let mut tensors: Vec<_> = names.map(|(name, dtype)| (name.to_owned(), counted(dtype, &[3]))).to_vec();
    let metadata: BTreeMap<_, _> = (0..20).map(|i| (format!("key {i}"), String::new())).collect();
    let path = place.path("x.safetensors");
    safetensors::Export::new().metadata(&metadata).write(&path, &tensors, |_| ()).unwrap();
    let first = fs::read(&path).unwrap();
    assert_eq!(
        ForeignFile::open(&path).unwrap().tensors().map(|tensor| tensor.name).collect::<Vec<_>>(),
        ["z", "c", "a", "b"]
    );
    assert_eq!(u64::from_le_bytes(first[..8].try_into().unwrap()) % 8, 0);
    tensors.reverse();
    safetensors::Export::new().metadata(&metadata).write(&path, &tensors, |_| ()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
}

#[test]
fn four_bit_floats_are_counted_individually_in_safetensors() {
    let place = Place::new();
    let header = |shape: &str| {
        let header = format!(r#"{{"x":{{"dtype":"F4","shape":{shape},"data_offsets":[0,3]}}}}"#);
        safetensors_bytes(&header, &[0x21, 0x43, 0x65])
    };
    for (shape, what) in [("[2,3]", "F4"), ("[6,1]", "F4"), ("[]", "header")] {
        assert!(place.refuse("x.safetensors", &header(shape)).contains(what));
    }
    let path = place.file("x.safetensors", &header("[1,6]"));
    place.import(&path).unwrap();
    let tensor = place.store.load("x").unwrap();
    assert_eq!(logical(&tensor), (DType::F4E2M1FNx2, vec![1, 3], vec![0x21, 0x43, 0x65]));

    safetensors::Export::new().write(&path, &[("x".into(), tensor)], |_| ()).unwrap();
    assert!(String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(r#""shape":[1,6]"#));
}

#[test]
fn unwritable_tensors_are_refused_before_anything_is_written() {
    let place = Place::new();
    let path = place.file("old.safetensors", b"old");
    let byte = counted(DType::U8, &[1]);
    for (tensors, what) in [
        (vec![("a", byte.clone()), ("__metadata__", byte.clone())], "__metadata__"),
        (vec![("a", byte.clone()), ("b", counted(DType::F32, &[1])), ("a", byte)], "\"a\""),
        (vec![("wide", counted(DType::C128, &[1]))], "\"wide\": safetensors cannot hold complex128"),
        (vec![("pair", counted(DType::F4E2M1FNx2, &[]))], "\"pair\""),
        (vec![("none", Tensor::from_bytes(DType::U8, &[1 << 40, 1 << 40, 0], &[]).unwrap())], "overflow"),
    ] {
        let tensors: Vec<_> = tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        let error = safetensors::Export::new()
            .write(&path, &tensors, |_| panic!("an element was written"))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadFile);
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(place.names(), ["old.safetensors", "store.smap"]);
}

#[test]
fn malformed_safetensors_headers_are_refused_with_the_reason() {
    let place = Place::new();
    let one = |fields: &str| format!(r#"{{"x":{{{fields}}}}}"#);
    let two = |first: &str, second: &str| {
        let tensor = |range: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{range}}}"#);
        format!(r#"{{"x":{},"y":{}}}"#, tensor(first), tensor(second))
    };
    for (header, what) in [
        (String::new(), "header"),
        ("no json".to_owned(), "header"),
        ("[]".to_owned(), "an object"),
        ("[".repeat(100_000), "header"),
        ("{}".to_owned(), "0 bytes of elements, but 8"),
        ("{} {}".to_owned(), "trailing"),
        (one(""), "tensor \"x\": missing field"),
        (one(r#""dtype":"U8","shape":[4],"data_offsets":[0,4]"#), "4 bytes of elements, but 8"),
        (one(r#""dtype":"U8","shape":[9],"data_offsets":[0,9]"#), "9 bytes of elements, but 8"),
        (one(r#""dtype":"U8","shape":[8],"data_offsets":[8,0]"#), "tensor \"x\" has the bytes 8 to 0"),
        (one(r#""dtype":"U8","shape":[-8],"data_offsets":[0,8]"#), "tensor \"x\": invalid value"),
        (
            one(r#""dtype":"F32","shape":[8],"data_offsets":[0,8]"#),
            "is F32 of shape [8], which does not take 8 bytes",
        ),
        (one(r#""dtype":"U8","shape":[4294967296,4294967296,8],"data_offsets":[0,8]"#), "overflow"),
        (one(r#""dtype":"I64","shape":[9223372036854775807],"data_offsets":[0,8]"#), "overflow"),
        (one(r#""dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551616]"#), "tensor \"x\""),
        (one(r#""dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]"#), "duplicate field"),
        (one(r#""dtype":"F128","shape":[8],"data_offsets":[0,8]"#), "F128"),
        (one(r#""dtype":"F\n\u001b[1m","shape":[8],"data_offsets":[0,8]"#), "`F\u{fffd}\u{fffd}[1m`"),
        (one(&format!(r#""dtype":"{}","shape":[8],"data_offsets":[0,8]"#, "F".repeat(100_000))), "FFF"),
        (
            one(&format!(r#""dtype":"U8","shape":[8{}],"data_offsets":[0,8]"#, ",1".repeat(64))),
            "more than 64 dimensions",
        ),
        (one(r#""dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]"#), "header"),
        (one(r#""dtype":"F6_E3M2","shape":[32],"data_offsets":[0,24]"#), "24 bytes of elements, but 8"),
        (two("[0,4]", "[5,9]"), "tensor \"y\" has the bytes 5 to 9, but those from 4 are next"),
        (two("[0,4]", "[3,7]"), "tensor \"y\" has the bytes 3 to 7"),
        (two("[4,8]", "[4,8]"), "header"),
        (two("[1,5]", "[5,9]"), "tensor \"x\" has the bytes 1 to 5"),
        (two("[0,4]", "[4,8]").replace("\"y\"", "\"x\""), "\"x\" appears twice"),
        (r#"{"__metadata__":{"a":1}}"#.to_owned(), "__metadata__: invalid type"),
        (one(r#""dtype":"U8","shape":[8]]"#), "tensor \"x\": expected `,` or `}` at line 1 column 31"),
        ("{\n \"x\":{\"shape\":\"8\"}}".to_owned(), "at line 2 column 17"),
        (one(&format!(r#""a":{}"#, "[".repeat(200))), "it nests deeper than 128"),
        (
            format!(r#"{{"{}":{{}}}}"#, "n".repeat((4 << 20) + 1)),
            "a string or number of more than 4194304 bytes",
        ),
        (one(&format!(r#""a":{}"#, "1".repeat(5 << 20))), "a string or number of more than 4194304 bytes"),
        (r#"{"__metadata__":{"a":"1","a":"2"}}"#.to_owned(), "\"a\" appears twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(), "\"__metadata__\" appears twice"),
    ] {
        let message = place.refuse("x.safetensors", &safetensors_bytes(&header, &[0; 8]));
        assert!(message.contains(what), "{message}, and not {what}");
    }
    let six_bits = one(r#""dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]"#);
    let message = place.refuse("x.safetensors", &safetensors_bytes(&six_bits, &[0; 3]));
    assert!(message.contains("tensor \"x\": stridemap cannot hold F6_E2M3"), "{message}");
    for length in [3, 100_000_001, u64::MAX - 8, u64::MAX] {
        let bytes = [length.to_le_bytes().as_slice(), b"{}"].concat();
        assert!(place.refuse("x.safetensors", &bytes).contains(&format!("{length} bytes")));
    }
}

#[test]
fn safetensors_header_text_may_be_long_and_contain_brackets_and_quotes() {
    let place = Place::new();
    for text in
        ["[{".repeat(50_000), r#"\"{"#.repeat(50_000), r"\\".repeat(50_000), r"λ\u0001".repeat(50_000)]
    {
        let header = format!(
            r#"{{"x":{{"dtype":"U8","shape":[8],"data_offsets":[0,8]}},"__metadata__":{{"a":"{text}"}}}}{}"#,
            " ".repeat(5 << 20)
        );
        let path = place.file("x.safetensors", &safetensors_bytes(&header, &[7; 8]));
        let file = ForeignFile::open(&path).unwrap();
        let expected: String = serde_json::from_str(&format!("\"{text}\"")).unwrap();
        assert!(file.attributes()["a"] == expected);
        assert_eq!(logical(&file.load("x").unwrap()).2, [7; 8]);
    }
}

#[test]
fn header_over_the_limit_of_the_format_is_refused_even_if_complete() {
    let place = Place::new();
    let path = place.file("x.safetensors", &100_000_001u64.to_le_bytes());
    fs::File::options().write(true).open(&path).unwrap().set_len(200_000_000).unwrap();
    assert_eq!(place.import(&path).unwrap_err().kind(), ErrorKind::BadFile);
}

#[test]
fn metadata_that_is_no_attribute_is_a_tensor_of_bytes_or_left_out_by_name() {
    let place = Place::new();
    let header = |metadata: &str| {
        format!(r#"{{"__metadata__":{metadata},"a":{{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}}}"#)
    };
    let file = |metadata: &str| place.file("x.safetensors", &safetensors_bytes(&header(metadata), &[7; 8]));
    for none in ["null", "{}"] {
        assert!(ForeignFile::open(file(none)).unwrap().attributes().is_empty());
    }
    let long = "é".repeat(600_000);
    let found = ForeignFile::open(file(&format!(r#"{{"short":"1","long":"{long}"}}"#))).unwrap();
    assert_eq!(found.attributes().iter().collect::<Vec<_>>(), [(&"short".to_owned(), &"1".to_owned())]);
    assert_eq!(found.long_attributes(), ["long"]);
    assert_eq!(found.load("long").unwrap().read::<u8>().unwrap(), long.as_bytes());
    // Many that are short, but too much together.
    let many: Vec<String> = (0..20_000).map(|i| format!(r#""k{i}":"{}""#, "v".repeat(i % 100))).collect();
    let path = file(&format!("{{{}}}", many.join(",")));
    let found = ForeignFile::open(&path).unwrap();
    assert!(found.attributes().len() > 5000 && found.long_attributes().len() > 5000);
    assert_eq!(found.attributes().len() + found.long_attributes().len(), 20_000);
    place.import(&path).unwrap();
    assert_eq!(place.store.load("k19999").unwrap().read::<u8>().unwrap(), [b'v'; 99]);
    // They also are all kept if a store just has room for them, and as many as possible of those of one size.
    for (count, value_bytes, kept) in [(20_000, 20, 20_000), (12, 100_000, 10)] {
        let many: Vec<String> =
            (0..count).map(|i| format!(r#""k{i:05}":"{}""#, "v".repeat(value_bytes))).collect();
        let found = ForeignFile::open(file(&format!("{{{}}}", many.join(",")))).unwrap();
        assert_eq!((found.attributes().len(), found.long_attributes().len()), (kept, count - kept));
    }
    for (metadata, name, said) in [
        (r#"{"":"1"}"#.to_owned(), "", "no attribute can have this key"),
        ("{\"k\\u0000\":\"1\"}".to_owned(), "k\0", "no attribute can have this key"),
        (format!(r#"{{"a":"{long}"}}"#), "a", "too much for an attribute, and a tensor has its name"),
    ] {
        let path = file(&metadata);
        let error = ForeignFile::open(&path).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        let found = ForeignOptions::new().skip_unreadable(true).open(path).unwrap();
        assert_eq!((found.skipped()[0].name.as_str(), found.tensors().count()), (name, 1));
    }
    // A value may have a NUL.
    let found = ForeignFile::open(file("{\"k\":\"a\\u0000b\"}")).unwrap();
    assert_eq!(found.attributes()["k"], "a\0b");
}
