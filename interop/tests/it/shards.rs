//! Models written as several safetensors files and an index.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stridemap::{DType, ErrorKind, ExternalFiles, OnExisting, StoreOptions, Tensor};
use stridemap_interop::safetensors::Export;
use stridemap_interop::{FileFormat, ForeignFile};

use crate::place::{Place, counted, logical, views};

pub(crate) const INDEX: &str = "model.safetensors.index.json";

pub(crate) type Tensors = Vec<(String, Tensor)>;

/// Returns tensors of 24, 6, 100 and 24 bytes of elements, and an empty one.
pub(crate) fn model() -> Tensors {
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

pub(crate) fn write(place: &Place, max_shard_bytes: u64) -> Vec<String> {
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let options = Export::new().metadata(&metadata).max_shard_bytes(max_shard_bytes);
    let written = options.write(place.path("model.safetensors"), &model(), |_| ()).unwrap();
    written.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn model_is_split_in_order_of_name_and_read_as_one() {
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
    assert_eq!((file.format(), file.format().name()), (FileFormat::ShardIndex, "shard-index"));
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
fn model_that_fits_in_one_part_is_one_file() {
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
fn existing_file_refuses_all_parts() {
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

/// A name that is created while elements are written is detected when the files are renamed: the first part, the last
/// part, or the index.
#[test]
fn failed_renames_restore_every_file() {
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
                // A file, if existing files are refused; otherwise a directory, which a rename never replaces.
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
fn export_in_parts_may_replace_the_files_it_reads_from() {
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
fn each_adopted_part_is_checked_for_changes() {
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
    assert_eq!(store.attributes("")["total_size"], "154");

    // Only the part with `large`.
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
fn too_many_parts_are_refused_before_anything_is_written() {
    let place = Place::new();
    let bytes: Tensors = (0..4097).map(|n| (n.to_string(), counted(DType::U8, &[1]))).collect();
    let options = Export::new().max_shard_bytes(1);
    let error = options.write(place.path("x.safetensors"), &bytes, |_| panic!("written")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert!(error.to_string().contains("4097 shards"), "{error}");
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff.safetensors");
    let error = options.write(place.dir.path().join(name), &bytes[..2], |_| panic!("written")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadFile);
    assert_eq!(place.names(), ["store.smap"]);
}
