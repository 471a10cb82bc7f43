//! Models of several safetensors files and an index, in and out, whole and lying.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use stridemap::{DType, ErrorKind, ExternalFiles, OnExisting, StoreOptions, Tensor};
use stridemap_interop::safetensors::Export;
use stridemap_interop::{FileFormat, ForeignFile, safetensors};

use crate::place::{Place, counted, logical, views};

const INDEX: &str = "model.safetensors.index.json";

type Tensors = Vec<(String, Tensor)>;

/// 24, 6, 100 and 24 bytes of elements, and none.
fn model() -> Tensors {
    [
        ("b", counted(DType::F32, &[2, 3])),
        ("a", counted(DType::U8, &[6])),
        ("large", counted(DType::F16, &[5, 10])),
        ("c λ", counted(DType::I64, &[3])),
        ("none", counted(DType::I64, &[0, 3])),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .to_vec()
}

fn write(place: &Place, max_shard_bytes: u64) -> Vec<String> {
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let options = Export::new().metadata(&metadata).max_shard_bytes(max_shard_bytes);
    let written = options.write(place.path("model.safetensors"), &model(), |_| ()).unwrap();
    written.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A part with tensors of so many bytes each.
fn part(place: &Place, name: &str, tensors: &[(&str, usize)]) -> PathBuf {
    let tensors: Tensors =
        tensors.iter().map(|&(name, n)| (name.to_owned(), counted(DType::U8, &[n]))).collect();
    let path = place.path(name);
    safetensors::Export::new().write(&path, &tensors, |_| ()).unwrap();
    path
}

#[test]
fn model_is_cut_by_names_and_comes_back_as_one_file() {
    let place = Place::new();
    let names = write(&place, 30);
    let parts: Vec<String> = (1..=4).map(|n| format!("model-0000{n}-of-00004.safetensors")).collect();
    assert_eq!(names[..4], parts);
    assert_eq!(names[4], INDEX);
    assert_eq!(
        json_of(&place.path(INDEX)),
        json!({
            "metadata": { "total_size": 154 },
            "weight_map": {
                "a": parts[0], "b": parts[0], "c λ": parts[1], "large": parts[2], "none": parts[3],
            },
        })
    );
    assert_eq!(place.names(), [&parts[..], &[INDEX.to_owned(), "store.smap".to_owned()]].concat());

    let file = ForeignFile::open(place.path(INDEX)).unwrap();
    assert_eq!((file.format(), file.format().name()), (FileFormat::SafetensorsIndex, "safetensors-index"));
    let text: BTreeMap<_, _> = [("format", "pt"), ("total_size", "154")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    assert_eq!(file.attributes(), &text);
    let files: Vec<PathBuf> = file.storages().map(|storage| storage.file).collect();
    assert_eq!(files, parts.iter().map(|part| place.path(part)).collect::<Vec<_>>());
    place.import(&place.path(INDEX)).unwrap();
    for (name, tensor) in model() {
        assert_eq!(logical(&file.load(&name).unwrap()), logical(&tensor), "{name}");
        assert_eq!(logical(&place.store.load(&name).unwrap()), logical(&tensor), "{name}");
    }
    assert_eq!(place.store.names().unwrap().len(), 5);
    assert_eq!(place.store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn what_fits_in_one_part_is_a_plain_file() {
    let place = Place::new();
    assert_eq!(write(&place, 154), ["model.safetensors"]);
    assert_eq!(place.names(), ["model.safetensors", "store.smap"]);
    assert_eq!(write(&place, 153).len(), 3);
    let none = Export::new().max_shard_bytes(1).write(place.path("none"), &[], |_| ()).unwrap();
    assert_eq!(none, [place.path("none")]);
}

#[test]
fn views_of_a_store_are_exported_in_parts_in_their_logical_order() {
    let place = Place::new();
    place.store.save("base", &counted(DType::I32, &[4, 5])).unwrap();
    let views = views(&place.store.load("base").unwrap());
    let mut told_bytes = 0;
    let options = Export::new().max_shard_bytes(80);
    let path = place.path("views.safetensors");
    let written = options.write(&path, &views, |bytes| told_bytes += bytes).unwrap();
    assert!(written.len() > 3, "{written:?}");
    let sizes = views.iter().map(|(_, view)| view.nbytes() as u64);
    assert_eq!(told_bytes, sizes.sum::<u64>());
    let file = ForeignFile::open(written.last().unwrap()).unwrap();
    for (name, view) in views {
        assert_eq!(logical(&file.load(&name).unwrap()), logical(&view), "{name}");
    }
}

#[test]
fn set_with_a_file_that_may_not_be_replaced_is_refused_whole() {
    let names: Vec<String> = write(&Place::new(), 30);
    for taken in &names {
        let place = Place::new();
        place.file(taken, b"old");
        let options = Export::new().on_existing(OnExisting::Refuse).max_shard_bytes(30);
        let error = options
            .write(place.path("model.safetensors"), &model(), |_| panic!("an element was written"))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains(taken), "{error}");
        let mut left = vec![taken.clone(), "store.smap".to_owned()];
        left.sort();
        assert_eq!(place.names(), left);
    }
}

/// A name that is taken while elements are written is found when the set is named: an error at the first, the last part,
/// and at the index.
#[test]
fn failure_in_the_middle_of_naming_leaves_every_file_as_it_was() {
    for (policy, number) in
        [OnExisting::Refuse, OnExisting::Replace].into_iter().flat_map(|p| (0..5).map(move |n| (p, n)))
    {
        let place = Place::new();
        let names = write(&place, 30);
        let mut before: BTreeMap<String, Vec<u8>> =
            names.iter().map(|name| (name.clone(), fs::read(place.path(name)).unwrap())).collect();
        if policy == OnExisting::Refuse {
            names.iter().for_each(|name| fs::remove_file(place.path(name)).unwrap());
            before.clear();
        }
        let obstacle = place.path(&names[number]);
        let other = vec![("a".to_owned(), counted(DType::U8, &[30])); 1];
        let other: Tensors =
            other.into_iter().chain((0..3).map(|n| (format!("b{n}"), counted(DType::U8, &[30])))).collect();
        let mut is_first = true;
        let options = Export::new().on_existing(policy).max_shard_bytes(30);
        let written = options.write(place.path("model.safetensors"), &other, |_| {
            if std::mem::take(&mut is_first) {
                // A file where that is refused; a directory, which nothing is ever renamed over.
                let _ = fs::remove_file(&obstacle);
                fs::create_dir(&obstacle).unwrap();
            }
        });
        let error = written.unwrap_err();
        assert!(error.to_string().contains(&names[number]), "{policy:?} {number}: {error}");
        assert!(obstacle.is_dir());
        fs::remove_dir(&obstacle).unwrap();
        before.remove(&names[number]);
        let mut left: Vec<String> = before.keys().cloned().collect();
        left.push("store.smap".to_owned());
        left.sort();
        assert_eq!(place.names(), left, "{policy:?} {number}");
        for (name, bytes) in before {
            assert_eq!(fs::read(place.path(&name)).unwrap(), bytes, "{policy:?} {number} {name}");
        }
    }
}

#[test]
fn case_29_replaced_set_may_be_what_the_tensors_are_read_from() {
    let place = Place::new();
    write(&place, 30);
    let file = ForeignFile::open(place.path(INDEX)).unwrap();
    let turned: Tensors =
        model().iter().map(|(name, _)| (name.clone(), file.load(name).unwrap().flip([0]).unwrap())).collect();
    let path = place.path("model.safetensors");
    Export::new().max_shard_bytes(30).write(&path, &turned, |_| ()).unwrap();
    assert_eq!(place.names().len(), 6);
    let file = ForeignFile::open(place.path(INDEX)).unwrap();
    for (name, tensor) in model() {
        assert_eq!(logical(&file.load(&name).unwrap().flip([0]).unwrap()), logical(&tensor), "{name}");
    }
}

#[test]
fn adopted_parts_are_each_known_by_their_own_stamp() {
    let place = Place::new();
    let names = write(&place, 30);
    let options = StoreOptions::new().external(ExternalFiles::Beside);
    let store = options.create(place.path("adopted.smap")).unwrap();
    stridemap_interop::adopt(&store, place.path(INDEX), "").unwrap();
    for (name, tensor) in model() {
        assert_eq!(logical(&store.load(&name).unwrap()), logical(&tensor), "{name}");
    }
    let files: Vec<_> = store
        .snapshot()
        .storages()
        .map(|storage| storage.unwrap().file.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(files, names[..4]);
    assert_eq!(store.attributes()["total_size"], "154");

    // The part with `large`, and no other.
    let part = fs::File::options().append(true).open(place.path(&names[2])).unwrap();
    part.set_len(part.metadata().unwrap().len() + 1).unwrap();
    let store = options.open(place.path("adopted.smap")).unwrap();
    for (name, tensor) in model() {
        match store.load(&name) {
            Ok(loaded) => assert_eq!(logical(&loaded), logical(&tensor), "{name}"),
            Err(error) => {
                assert_eq!((error.kind(), name.as_str()), (ErrorKind::ExternalChanged, "large"), "{error}")
            }
        }
    }
    assert!(store.load("large").is_err());
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
fn scalars_of_the_index_are_text_and_what_the_index_lacks_is_there_as_well() {
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
fn part_behind_a_link_is_beside_the_index() {
    let place = Place::new();
    fs::create_dir(place.path("blobs")).unwrap();
    let blob = part(&place, "blobs/0", &[("a", 3)]);
    std::os::unix::fs::symlink(blob, place.path("x")).unwrap();
    let index = place.file("blobs/1", br#"{"weight_map":{"a":"x"}}"#);
    std::os::unix::fs::symlink(index, place.path(INDEX)).unwrap();
    assert_eq!(ForeignFile::open(place.path(INDEX)).unwrap().load("a").unwrap().size(), [3]);
}

#[test]
fn wrong_indexes_are_refused_with_what_stands() {
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
        (map(r#""a":"x","e":"x""#), "tensor \"e\" in \"x\", which does not contain it"),
        (map(r#""a":"x","d":"x""#), "tensor \"d\" in \"x\", which does not contain it"),
        (map(r#""a":"x","c":"y""#), "two tensors are named \"a\""),
        (map(r#""a":"y","b":"x""#), "tensor \"a\" in a different part from \"x\""),
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
            "more than 4096 parts",
        ),
        (
            map(&(0..1_000_000).map(|n| format!(r#""{n}":"x""#)).collect::<Vec<_>>().join(",")),
            "does not contain it",
        ),
    ] {
        let message = place.refuse("index", index.as_bytes());
        assert!(message.contains(what), "{message}, and not {what}");
    }
    // Of these the part itself is wrong, and named.
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
fn headers_of_all_parts_together_have_the_cap_of_one() {
    let place = Place::new();
    // Two headers of 60 MB of blanks each.
    for (part, tensor) in [("x", "a"), ("y", "b")] {
        let header = format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let header = header + &" ".repeat(60_000_000);
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), b"\0"].concat();
        place.file(part, &bytes);
    }
    place.import(&place.file("one", br#"{"weight_map":{"a":"x"}}"#)).unwrap();
    let error = place.import(&place.file("two", br#"{"weight_map":{"a":"x","b":"y"}}"#)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert!(error.to_string().contains("allowed"), "{error}");
}

#[test]
fn length_that_begins_like_json_is_a_length() {
    let place = Place::new();
    // A header of 123 bytes, whose length is written as an opening brace.
    let header = format!("{:<123}", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#);
    let path = place.file("x", &[&123u64.to_le_bytes(), header.as_bytes(), b"\x07"].concat());
    let file = ForeignFile::open(&path).unwrap();
    assert_eq!(
        (file.format(), file.load("a").unwrap().read::<u8>().unwrap()),
        (FileFormat::Safetensors, vec![7])
    );
}

#[test]
fn what_no_set_can_hold_is_refused_before_anything_is_written() {
    let place = Place::new();
    let bytes: Tensors = (0..4097).map(|n| (n.to_string(), counted(DType::U8, &[1]))).collect();
    let options = Export::new().max_shard_bytes(1);
    let error = options.write(place.path("x.safetensors"), &bytes, |_| panic!("written")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert!(error.to_string().contains("4097 parts"), "{error}");
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff.safetensors");
    let error = options.write(place.dir.path().join(name), &bytes[..2], |_| panic!("written")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert_eq!(place.names(), ["store.smap"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is changed in an index or a part, all tensors are as they were, or the error is typed, or another header or
    /// other elements are read that the change says.
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
        fs::write(&path, &bytes).unwrap();
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
