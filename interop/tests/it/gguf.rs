//! GGUF files that the `gguf` package wrote, and files that are written from them. Malformed files are in `hostile.rs`.
//!
//! `tests/gguf_files.py` makes the files in `tests/data/gguf`, and compares files as the package reads them.

mod hostile;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stridemap::{DType, ExternalFiles, Store, StoreOptions, Tensor};
use stridemap_interop::gguf::{Export, TYPE_KEY};
use stridemap_interop::{FileFormat, ForeignFile, adopt, import};

use crate::place::{Place, counted, logical};
use crate::support::{python, python_has, stdout};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gguf_files.py");

/// The files, and how many tensors each has.
const FILES: [(&str, usize); 6] =
    [("all", 34), ("common", 14), ("aligned", 3), ("close", 4), ("vocabulary", 4), ("empty", 0)];

/// The bytes of two blocks of each quantized type.
const BLOCKS: [(&str, usize); 26] = [
    ("Q4_0", 36),
    ("Q4_1", 40),
    ("Q5_0", 44),
    ("Q5_1", 48),
    ("Q8_0", 68),
    ("Q8_1", 80),
    ("Q2_K", 168),
    ("Q3_K", 220),
    ("Q4_K", 288),
    ("Q5_K", 352),
    ("Q6_K", 420),
    ("Q8_K", 584),
    ("IQ2_XXS", 132),
    ("IQ2_XS", 148),
    ("IQ3_XXS", 196),
    ("IQ1_S", 100),
    ("IQ4_NL", 36),
    ("IQ3_S", 220),
    ("IQ2_S", 164),
    ("IQ4_XS", 272),
    ("IQ1_M", 112),
    ("TQ1_0", 108),
    ("TQ2_0", 132),
    ("MXFP4", 34),
    ("NVFP4", 72),
    ("Q1_0", 36),
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/gguf/{name}.gguf"))
}

/// Writes what a store holds under a prefix as a GGUF file.
fn export(store: &Store, prefix: &str, path: &Path) {
    let snapshot = store.snapshot();
    let named = |(name, tensor): (String, Tensor)| (name[prefix.len()..].to_owned(), tensor);
    let tensors: Vec<_> = snapshot.iter_loaded(prefix).unwrap().map(|found| named(found.unwrap())).collect();
    let types: BTreeMap<String, String> = tensors
        .iter()
        .filter_map(|(name, _)| {
            Some((name.clone(), snapshot.attributes(&format!("{prefix}{name}")).remove(TYPE_KEY)?))
        })
        .collect();
    let metadata = snapshot.attributes(prefix);
    let mut written_bytes = 0;
    Export::new().metadata(&metadata).types(&types).write(path, &tensors, |n| written_bytes += n).unwrap();
    let is_value = |name: &String| types.get(name).is_some_and(|of| of.starts_with('[') || of == "text");
    let elements = tensors.iter().filter(|(name, _)| !is_value(name));
    assert_eq!(written_bytes, elements.map(|(_, tensor)| tensor.nbytes() as u64).sum::<u64>());
}

/// Returns everything that a file holds.
fn contents(path: &Path) -> (BTreeMap<String, String>, BTreeMap<String, Contents>) {
    let file = ForeignFile::open(path).unwrap();
    assert_eq!(file.format(), FileFormat::Gguf);
    let tensor = |name: String| {
        let found = (logical(&file.load(&name).unwrap()), file.attributes_of(&name));
        (name, found)
    };
    (file.attributes().clone(), file.tensors().map(|info| tensor(info.name)).collect())
}

type Contents = ((DType, Vec<usize>, Vec<u8>), BTreeMap<String, String>);

#[test]
fn every_type_of_tensor_has_the_size_and_bytes_of_the_gguf_package() {
    let file = ForeignFile::open(data("all")).unwrap();
    for (name, row_bytes) in BLOCKS {
        let tensor = format!("blocks.{name}");
        let bytes: Vec<u8> = (0..3 * row_bytes).map(|i| (i * 37 % 251) as u8).collect();
        assert_eq!(logical(&file.load(&tensor).unwrap()), (DType::U8, vec![3, row_bytes], bytes), "{name}");
        assert_eq!(file.attributes_of(&tensor)[TYPE_KEY], name);
    }
    // The package has no array of bfloat16, so it writes the bytes.
    let half = logical(&file.load("blocks.BF16").unwrap());
    assert_eq!((half.0, half.1, half.2.len()), (DType::BF16, vec![3, 2], 12));
    assert!(file.attributes_of("blocks.BF16").is_empty());
    let numbers = || (0..24).map(|n| n - 5);
    let floats: Vec<f64> = numbers().map(|n: i64| n as f64 * 1.5).collect();
    for (name, dtype) in [("F16", DType::F16), ("F32", DType::F32), ("F64", DType::F64)] {
        let plain = file.load(&format!("plain.{name}")).unwrap();
        assert_eq!((plain.dtype(), plain.size()), (dtype, &[2, 3, 4][..]));
        assert_eq!(plain.to_dtype(DType::F64).unwrap().read::<f64>().unwrap(), floats, "{name}");
    }
    let whole: Vec<i64> = numbers().collect();
    for (name, dtype) in [("I8", DType::I8), ("I16", DType::I16), ("I32", DType::I32), ("I64", DType::I64)] {
        let plain = file.load(&format!("plain.{name}")).unwrap();
        assert_eq!((plain.dtype(), plain.size()), (dtype, &[2, 3, 4][..]));
        assert_eq!(plain.to_dtype(DType::I64).unwrap().read::<i64>().unwrap(), whole, "{name}");
    }
}

#[test]
fn metadata_are_texts_and_json_with_their_types() {
    let file = ForeignFile::open(data("all")).unwrap();
    let attributes = file.attributes();
    for (key, value) in [
        ("general.architecture", "llama"),
        ("test.uint8", "json:200"),
        ("test.int64", "json:-9223372036854775808"),
        ("test.uint64", "json:18446744073709551615"),
        ("test.float32", "json:1e-5"),
        ("test.float64", "json:0.1"),
        ("test.bool", "json:true"),
        ("test.infinite", "json:\"-inf\""),
        ("test.nan", "json:\"nan\""),
        ("test.text", "λ\n\"quoted\""),
        ("test.like_json", "json:[1, 2]"),
        ("test.texts", "json:[\"a\",\"\",\"json:5\",\"ü\"]"),
        ("test.list.int16", "json:[-300,-300]"),
        ("test.list.float32", "json:[1e-5,1e-5]"),
        ("test.list.bool", "json:[true,true]"),
    ] {
        assert_eq!(attributes.get(key).map(String::as_str), Some(value), "{key}");
    }
    let type_of = |key: &str| attributes.get(&format!("gguf.type:{key}")).map(String::as_str);
    assert_eq!(type_of("test.uint8"), Some("uint8"));
    assert_eq!(type_of("test.list.int8"), Some("[int8]"));
    assert_eq!(type_of("test.like_json"), Some("string"));
    assert_eq!(type_of("test.small"), Some("int32"));
    for key in ["test.uint32", "test.float32", "test.bool", "test.text", "test.texts", "test.list.uint32"] {
        assert_eq!(type_of(key), None, "{key} has the type that its value has anyway");
    }
}

#[test]
fn long_arrays_are_tensors_of_the_bytes_in_the_file() {
    let file = ForeignFile::open(data("vocabulary")).unwrap();
    let names = ["tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"];
    assert_eq!(file.long_attributes(), names);
    for (name, of) in names.into_iter().zip(["[string]", "[float32]", "[int32]"]) {
        assert_eq!(file.attributes_of(name)[TYPE_KEY], of);
        assert!(!file.attributes().contains_key(name));
    }
    let scores = file.load("tokenizer.ggml.scores").unwrap().to_bytes().unwrap();
    let scores: Vec<f32> =
        scores.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(scores, (0..1030).map(|i| (f64::from(i) / 3.0) as f32).collect::<Vec<_>>());
    let tokens = file.load("tokenizer.ggml.tokens").unwrap().to_bytes().unwrap();
    assert!(tokens.starts_with(&[&11u64.to_le_bytes()[..], "token 0 ▁".as_bytes()].concat()));
}

#[test]
fn an_import_and_an_adopted_file_are_written_back_with_the_same_tensors_and_metadata() {
    let has_package = python_has("numpy, gguf");
    for (name, tensor_count) in FILES {
        let place = Place::new();
        let (original, path) = (contents(&data(name)), place.path("written.gguf"));
        assert_eq!(original.1.len(), tensor_count, "{name}");
        import(&place.store, data(name), "copy.").unwrap();
        let copied = place.path("beside.gguf");
        fs::copy(data(name), &copied).unwrap();
        let options = StoreOptions::new().external(ExternalFiles::Beside);
        let adopting = options.create(place.path("adopting.smap")).unwrap();
        adopt(&adopting, &copied, "").unwrap();
        for (store, prefix) in [(&place.store, "copy."), (&adopting, "")] {
            export(store, prefix, &path);
            assert_eq!(contents(&path), original, "{name}");
            // What is written again is the same file.
            let written = fs::read(&path).unwrap();
            let again = Place::new();
            import(&again.store, &path, "").unwrap();
            export(&again.store, "", &path);
            assert!(fs::read(&path).unwrap() == written, "{name} differs when it is written again");
            if has_package {
                stdout(&python(&[SCRIPT, "check", data(name).to_str().unwrap(), path.to_str().unwrap()]));
            }
        }
    }
}

#[test]
fn the_files_are_those_that_the_script_makes() {
    if !python_has("numpy, gguf") {
        return;
    }
    let place = Place::new();
    stdout(&python(&[SCRIPT, "write", place.dir.path().to_str().unwrap()]));
    for (name, _) in FILES {
        let made = fs::read(place.path(&format!("{name}.gguf"))).unwrap();
        assert!(made == fs::read(data(name)).unwrap(), "{name} is not what gguf_files.py makes");
    }
}

#[test]
fn views_and_scalars_are_written_in_row_major_order() {
    let place = Place::new();
    let matrix = counted(DType::F32, &[2, 3]);
    let tensors = [
        ("transposed".to_owned(), matrix.t().unwrap()),
        ("scalar".to_owned(), Tensor::from_vec(vec![1.5f64], &[]).unwrap()),
        ("none".to_owned(), counted(DType::I16, &[2, 0])),
    ];
    let path = place.path("x.gguf");
    Export::new().write(&path, &tensors, |_| ()).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    for (name, tensor) in &tensors {
        assert_eq!(logical(&file.load(name).unwrap()), logical(tensor), "{name}");
    }
    let mut piped = Vec::new();
    Export::new().write_to(&mut piped, &tensors, |_| ()).unwrap();
    assert!(piped == fs::read(&path).unwrap());
}

#[test]
fn what_gguf_cannot_hold_is_refused_before_anything_is_written() {
    let place = Place::new();
    let path = place.path("x.gguf");
    let (none, types) = (BTreeMap::new(), BTreeMap::from([("x".to_owned(), "Q4_0".to_owned())]));
    let refuse = |name: &str, tensor: Tensor, types: &BTreeMap<String, String>| {
        let tensors = [(name.to_owned(), tensor)];
        let refused = Export::new().types(types).write(&path, &tensors, |_| ()).unwrap_err();
        assert_eq!(refused.kind(), stridemap::ErrorKind::BadFile);
        refused.to_string()
    };
    let of = |message: String, what: &str| assert!(message.contains(what), "{message}");
    of(refuse("x", counted(DType::U8, &[2, 18]), &none), "GGUF cannot hold uint8, except blocks");
    of(refuse("x", counted(DType::C64, &[2]), &none), "GGUF cannot hold complex64");
    of(
        refuse("x", counted(DType::U8, &[2, 17]), &types),
        "size [2, 17] is not in rows of whole blocks of 18",
    );
    of(refuse("x", counted(DType::U8, &[]), &types), "not in rows of whole blocks");
    of(refuse("x", counted(DType::F32, &[1; 5]), &none), "has 5 dimensions, but GGUF has at most 4");
    of(refuse(&"x".repeat(64), counted(DType::F32, &[1]), &none), "name has 64 bytes, but GGUF allows 63");
    for (stated, what) in [
        ("Q9_Z", "\"Q9_Z\", which is not a type of blocks"),
        ("F32", "\"F32\", which is not a type of blocks"),
        ("[string]", "not values of [string]"),
    ] {
        let types = BTreeMap::from([("x".to_owned(), stated.to_owned())]);
        of(refuse("x", counted(DType::U8, &[18]), &types), what);
    }
    // A tensor of another dtype has replaced the blocks, and kept their attribute.
    let tensors = [("x".to_owned(), counted(DType::F32, &[3]))];
    Export::new().types(&types).write(&path, &tensors, |_| ()).unwrap();
    for alignment in ["32", "json:33", "json:0", "json:2097152", "json:[32]", "json:-32"] {
        let metadata = BTreeMap::from([("general.alignment".to_owned(), alignment.to_owned())]);
        let refused = Export::new().metadata(&metadata).write(&path, &tensors, |_| ()).unwrap_err();
        of(refused.to_string(), "must be a power of two");
    }
}

#[test]
fn a_whole_model_of_several_files_is_not_called_a_part() {
    let place = Place::new();
    let path = place.path("x.gguf");
    let metadata =
        [("split.no", "json:1"), ("split.count", "json:2"), ("split.tensors.count", "json:2"), ("a", "b")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let tensors = ["x", "y"].map(|name| (name.to_owned(), counted(DType::F32, &[2])));
    Export::new().metadata(&metadata).write(&path, &tensors[..1], |_| ()).unwrap();
    assert_eq!(ForeignFile::open(&path).unwrap().attributes(), &metadata);
    Export::new().metadata(&metadata).write(&path, &tensors, |_| ()).unwrap();
    let left = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    assert_eq!(ForeignFile::open(&path).unwrap().attributes(), &left);
}

#[test]
fn metadata_beyond_a_megabyte_are_tensors_of_text_and_are_written_back() {
    let place = Place::new();
    let template = "long ".repeat(300_000);
    let metadata =
        BTreeMap::from([("a".to_owned(), "b".to_owned()), ("template".to_owned(), template.clone())]);
    let path = place.path("x.gguf");
    Export::new().metadata(&metadata).write(&path, &[], |_| ()).unwrap();
    let original = fs::read(&path).unwrap();
    let file = ForeignFile::open(&path).unwrap();
    assert_eq!(file.long_attributes(), ["template"]);
    assert_eq!(file.load("template").unwrap().to_bytes().unwrap(), template.as_bytes());
    import(&place.store, &path, "").unwrap();
    export(&place.store, "", &place.path("y.gguf"));
    assert!(fs::read(place.path("y.gguf")).unwrap() == original);
}

#[test]
fn a_plain_tensor_that_is_imported_over_blocks_has_no_type_of_blocks() {
    let place = Place::new();
    let path = place.path("x.gguf");
    let types = BTreeMap::from([("x".to_owned(), "Q4_0".to_owned())]);
    Export::new().types(&types).write(&path, &[("x".to_owned(), counted(DType::U8, &[36]))], |_| ()).unwrap();
    import(&place.store, &path, "").unwrap();
    assert_eq!(place.store.attributes("x"), BTreeMap::from([(TYPE_KEY.to_owned(), "Q4_0".to_owned())]));
    Export::new().write(&path, &[("x".to_owned(), counted(DType::I8, &[36]))], |_| ()).unwrap();
    import(&place.store, &path, "").unwrap();
    assert!(place.store.attributes("x").is_empty());
}
