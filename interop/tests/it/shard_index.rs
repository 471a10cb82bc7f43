//! The index of a model in several safetensors files: valid contents and refusals.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use stridemap::{DType, ErrorKind};
use stridemap_interop::{FileFormat, ForeignFile, safetensors};

use crate::place::{Place, counted, logical, write_old};
use crate::shards::{INDEX, Tensors, write};

/// Writes a part with tensors of these numbers of bytes.
fn part(place: &Place, name: &str, tensors: &[(&str, usize)]) -> PathBuf {
    let tensors: Tensors =
        tensors.iter().map(|&(name, n)| (name.to_owned(), counted(DType::U8, &[n]))).collect();
    let path = place.path(name);
    safetensors::Export::new().write(&path, &tensors, |_| ()).unwrap();
    path
}

#[test]
fn part_changed_after_the_index_was_opened_is_an_error() {
    let place = Place::new();
    let names = write(&place, 30);
    let file = ForeignFile::open(place.path(INDEX)).unwrap();
    fs::File::options().write(true).open(place.path(&names[1])).unwrap().set_len(10).unwrap();
    let mut txn = place.store.begin().unwrap();
    assert_eq!(file.import_into(&mut txn, "", |_| ()).unwrap_err().kind(), ErrorKind::ExternalChanged);
}

#[test]
fn scalars_of_the_index_are_attributes_and_unlisted_tensors_are_read() {
    let place = Place::new();
    part(&place, "x", &[("a", 1), ("b", 2)]);
    let text = r#"{"metadata": {"n": 1e3, "t": true, "s": "a\"b", "l": [1], "o": {}, "z": null}, "weight_map": {"a": "x"},
        "more": [{}]}"#;
    let file = ForeignFile::open(place.file("any name", text.as_bytes())).unwrap();
    let attributes: Vec<_> = file.attributes().iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(attributes, [("n", "1e3"), ("s", "a\"b"), ("t", "true")]);
    assert_eq!(file.tensors().map(|tensor| tensor.name).collect::<Vec<_>>(), ["a", "b"]);
    for no_metadata in [r#"{"weight_map":{}}"#, r#"{"metadata":null,"weight_map":{}}"#] {
        let file = ForeignFile::open(place.file("any name", no_metadata.as_bytes())).unwrap();
        assert_eq!((file.tensors().count(), file.attributes().len()), (0, 0));
    }
}

#[test]
fn parts_may_be_checkpoints() {
    let place = Place::new();
    part(&place, "model-1.safetensors", &[("a", 3)]);
    let checkpoint = crate::torch::forge::tensor(b"K\x02", b"K\x00", b"K\x02\x85", b"K\x01\x85");
    place.file("pytorch_model-2.bin", &crate::torch::forge::legacy(&checkpoint, &[("0", &[0.5, 1.5])]));
    let zip = crate::torch::forge::archive(&[("m/data.pkl", b"\x80\x02}X\x05\0\0\0epochK\x03s.")]);
    place.file("pytorch_model-3.bin", &zip);
    let index = place.file(
        "pytorch_model.bin.index.json",
        br#"{"weight_map":{"a":"model-1.safetensors","w":"pytorch_model-2.bin","epoch":"pytorch_model-3.bin"}}"#,
    );
    let error = ForeignFile::open(&index).unwrap_err().to_string();
    assert!(error.contains("\"epoch\" is in \"pytorch_model-3.bin\", which does not contain it"), "{error}");
    let index = place.file(
        "pytorch_model.bin.index.json",
        br#"{"weight_map":{"a":"model-1.safetensors","w":"pytorch_model-2.bin","b":"pytorch_model-3.bin"}}"#,
    );
    let error = ForeignFile::open(&index).unwrap_err().to_string();
    assert!(error.contains("\"b\" is in \"pytorch_model-3.bin\", which does not contain it"), "{error}");
    let index = place.file(
        "pytorch_model.bin.index.json",
        br#"{"weight_map":{"a":"model-1.safetensors","w":"pytorch_model-2.bin"}}"#,
    );
    let file = ForeignFile::open(&index).unwrap();
    assert_eq!(file.format(), FileFormat::ShardIndex);
    assert_eq!(file.load("w").unwrap().read::<f32>().unwrap(), [0.5, 1.5]);
    place.import(&index).unwrap();
    assert_eq!(place.store.load("w").unwrap().read::<f32>().unwrap(), [0.5, 1.5]);
    assert_eq!(place.store.load("a").unwrap().size(), [3]);
    // An index cannot be a part of another.
    let nested = place.file("x.index.json", br#"{"weight_map":{"a":"pytorch_model.bin.index.json"}}"#);
    assert!(ForeignFile::open(nested).is_err());
}

#[test]
fn parts_are_searched_beside_the_link_to_an_index() {
    let place = Place::new();
    fs::create_dir(place.path("blobs")).unwrap();
    let blob = part(&place, "blobs/0", &[("a", 3)]);
    std::os::unix::fs::symlink(blob, place.path("x")).unwrap();
    let index = place.file("blobs/1", br#"{"weight_map":{"a":"x"}}"#);
    std::os::unix::fs::symlink(index, place.path(INDEX)).unwrap();
    assert_eq!(ForeignFile::open(place.path(INDEX)).unwrap().load("a").unwrap().size(), [3]);
}

#[test]
fn invalid_indexes_are_refused() {
    let place = Place::new();
    part(&place, "x", &[("a", 1), ("b", 2)]);
    part(&place, "y", &[("a", 1), ("c", 2)]);
    part(&place, "z", &[("d", 1)]);
    fs::create_dir(place.path("dir")).unwrap();
    place.file("empty", b"");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, place.path("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let map = |entries: &str| format!(r#"{{"weight_map":{{{entries}}}}}"#);
    let absolute = place.path("x");
    for (index, what) in [
        (map(r#""a":"../x""#), "\"../x\" is not the name of a file"),
        (map(&format!(r#""a":"{}""#, absolute.display())), "is not the name of a file"),
        (map(r#""a":"dir/../x""#), "is not the name of a file"),
        (map(r#""a":"./x""#), "is not the name of a file"),
        (map(r#""a":"..""#), "is not the name of a file"),
        (map(r#""a":".""#), "is not the name of a file"),
        (map(r#""a":"""#), "is not the name of a file"),
        (map("\"a\":\"x\\u0000\""), "is not the name of a file"),
        (map(r#""a":"gone""#), "\"gone\", which is not in the directory"),
        (map(r#""a":1"#), "expected a string"),
        (map(r#""a":"x","a":"x""#), "\"a\" appears twice"),
        (map(r#""a":"x","e":"x""#), "tensor \"e\" is in \"x\", which does not contain it"),
        (map(r#""a":"x","d":"x""#), "tensor \"d\" is in \"x\", which does not contain it"),
        (map(r#""a":"x","c":"y""#), "two tensors are named \"a\""),
        (map(r#""a":"y","b":"x""#), "tensor \"a\" is in \"x\", but weight_map says that it is in \"y\""),
        (map(r#""b":"x","c":"y""#), "two tensors are named \"a\""),
        ("{}".to_owned(), "weight_map"),
        ("{".to_owned(), "the index"),
        (r#"{"weight_map":[]}"#.to_owned(), "an object of names"),
        (map("") + "x", "trailing"),
        (r#"{"weight_map":{},"weight_map":{}}"#.to_owned(), "duplicate field"),
        (r#"{"weight_map":{},"metadata":1}"#.to_owned(), "metadata"),
        (r#"{"weight_map":{},"metadata":{"a":1,"a":1}}"#.to_owned(), "\"a\" appears twice"),
        (format!(r#"{{"weight_map":{{}},"x":{}"#, "[".repeat(1_000_000)), "the index"),
        (
            map(&(0..5000).map(|n| format!(r#""{n}":"p{n}""#)).collect::<Vec<_>>().join(",")),
            "more than 4096 shards",
        ),
        (
            map(&(0..1_000_000).map(|n| format!(r#""{n}":"x""#)).collect::<Vec<_>>().join(",")),
            "does not contain it",
        ),
    ] {
        let message = place.refuse("index", index.as_bytes());
        assert!(message.contains(what), "{message}, and not {what}");
    }
    // Here the part itself is malformed, and the error names it.
    for (part, what) in [
        ("fifo", "not a regular file"),
        ("dir", "not a regular file"),
        ("index", "allowed"),
        ("empty", "the file has only 0 bytes"),
    ] {
        let path = place.file("index", map(&format!(r#""a":"{part}""#)).as_bytes());
        let error = place.import(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
        assert!(error.to_string().contains(part) && error.to_string().contains(what), "{error}");
    }
}

#[test]
fn headers_of_all_parts_together_have_the_limit_of_one_header() {
    let place = Place::new();
    // Two headers that consist of 60 MB of blanks.
    for (part, tensor) in [("x", "a"), ("y", "b")] {
        let header = format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let header = header + &" ".repeat(60_000_000);
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), b"\0"].concat();
        place.file(part, &bytes);
    }
    place.import(&place.file("one", br#"{"weight_map":{"a":"x"}}"#)).unwrap();
    let error = place.import(&place.file("two", br#"{"weight_map":{"a":"x","b":"y"}}"#)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert!(
        error.to_string().contains("the headers of all shards have more than 100000000 bytes"),
        "{error}"
    );
}

#[test]
fn header_length_that_looks_like_json_is_read_as_a_length() {
    let place = Place::new();
    // A header of 123 bytes. Its length, written as a byte, is an opening brace.
    let header = format!("{:<123}", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#);
    let path = place.file("x", &[&123u64.to_le_bytes(), header.as_bytes(), b"\x07"].concat());
    let file = ForeignFile::open(&path).unwrap();
    assert_eq!(
        (file.format(), file.load("a").unwrap().read::<u8>().unwrap()),
        (FileFormat::Safetensors, vec![7])
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// If a byte of the index or of a part changes, then all tensors are read unchanged, or the error is typed, or the
    /// headers or elements differ as the change implies.
    #[test]
    fn changed_index_or_part_is_refused_or_read_alike_twice(
        file in 0..4usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6),
    ) {
        let place = Place::new();
        let names = write(&place, 60);
        let path = place.path(&names[file % names.len()]);
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte, kind) in changes {
            if bytes.is_empty() {
                continue;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        write_old(&path, &bytes);
        let index = place.path(INDEX);
        let opened = ForeignFile::open(&index);
        match place.import(&index) {
            Ok(()) => {
                let file = opened.unwrap();
                for name in file.tensors().map(|tensor| tensor.name) {
                    prop_assert_eq!(logical(&file.load(&name).unwrap()), logical(&place.store.load(&name).unwrap()));
                }
            }
            Err(error) => prop_assert!(
                matches!(error.kind(), ErrorKind::BadFile | ErrorKind::InvalidArgument | ErrorKind::Io),
                "{error}"
            ),
        }
    }
}
