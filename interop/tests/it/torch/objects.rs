//! Checkpoints that hold more than tensors and plain values. What can be read is read, and the rest is named. The files
//! are written by `tests/data/make_object_pt_files.py`.

use std::collections::BTreeMap;

use stridemap::DType;
use stridemap_interop::{ForeignFile, ForeignOptions};

use super::forge::{archive, legacy, tensor, text};
use super::{data, refusal};
use crate::place::{Place, write_old};

fn open(name: &str) -> ForeignFile {
    ForeignFile::open(data(&format!("pt_objects/{name}.pt"))).unwrap()
}

/// Opens a file that must be refused unless what cannot be read is left out.
fn open_skipping(name: &str) -> ForeignFile {
    let path = data(&format!("pt_objects/{name}.pt"));
    assert!(ForeignFile::open(&path).is_err(), "{name}");
    ForeignOptions::new().skip_unreadable(true).open(path).unwrap()
}

fn attributes(file: &ForeignFile) -> Vec<(&str, &str)> {
    file.attributes().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn tensors(file: &ForeignFile) -> Vec<String> {
    file.tensors().map(|tensor| tensor.name).collect()
}

fn skipped(file: &ForeignFile) -> Vec<&str> {
    file.skipped().iter().map(|skipped| skipped.name.as_str()).collect()
}

fn bytes(file: &ForeignFile, name: &str) -> Vec<u8> {
    file.load(name).unwrap().read::<u8>().unwrap()
}

#[test]
fn sets_bytes_and_kinds_of_dicts_are_read() {
    for protocol in [2, 4] {
        let file = open(&format!("containers{protocol}"));
        let expected = [
            ("args.lr", "0.1"),
            ("args.sizes.0", "2"),
            ("args.sizes.1", "3"),
            ("counts.a", "2"),
            ("counts.b", "1"),
            ("default.a.0", "1"),
            ("frozen.0", "x"),
            ("set.0", "7"),
        ];
        assert_eq!(attributes(&file), expected, "{protocol}");
        assert_eq!(tensors(&file), ["simple.x", "bytes", "no_bytes", "array"], "{protocol}");
        assert_eq!(bytes(&file, "bytes"), [0, 255]);
        assert_eq!(bytes(&file, "no_bytes"), [0; 0]);
        assert_eq!(bytes(&file, "array"), b"ab");
    }
    assert_eq!(attributes(&open("set")), [("inner.0", "1"), ("inner.1", "2")]);
    assert_eq!(bytes(&open("bytes"), "inner"), b"bytes");
    assert_eq!(open("default").tensors().count(), 0);
}

#[test]
fn objects_of_unknown_classes_are_named_and_what_is_in_them_is_read() {
    let file = open_skipping("lightning");
    let callback = "callbacks.ModelCheckpoint{'monitor': 'loss'}";
    assert_eq!(skipped(&file), [&format!("{callback}.dirpath"), "hyper_parameters", "cfg", "date"]);
    for (skipped, class) in file.skipped().iter().zip([
        "pathlib",
        "lightning.fabric.utilities.data.AttributeDict",
        "omegaconf.dictconfig.DictConfig",
        "datetime.date",
    ]) {
        let reason = skipped.reason.to_string();
        assert!(
            reason.contains(&format!("calls {class}")) && reason.contains("is code and is not run"),
            "{reason}"
        );
    }
    let expected = [
        ("cfg._content.dropout._content", "0.5"),
        ("cfg._parent", "null"),
        ("epoch", "3"),
        ("global_step", "100"),
        ("hyper_parameters.lr", "0.1"),
        ("hyper_parameters.name", "net"),
        ("pytorch-lightning_version", "2.5.0"),
    ];
    assert_eq!(attributes(&file), expected);
    let best = format!("{callback}.best_model_score");
    let expected = ["state_dict.layer.weight", "state_dict.layer.bias", &best, "cfg.scale"];
    assert_eq!(tensors(&file), expected);
    assert_eq!(file.load("cfg.scale").unwrap().read::<f32>().unwrap(), [3., 3.]);
    assert_eq!(file.load(&best).unwrap().item::<f32>().unwrap(), 0.25);
    assert_eq!(
        file.load("state_dict.layer.weight").unwrap().read::<f32>().unwrap(),
        [0., 1., 2., 3., 4., 5.]
    );
}

#[test]
fn items_attributes_and_slots_of_objects_are_read_in_every_protocol() {
    for protocol in [1, 2, 4] {
        let file = open_skipping(&format!("objects{protocol}"));
        let (mut names, mut values, mut left_out) = (
            vec!["items.1", "w"],
            vec![("items.0", "1"), ("options.deep.rate", "0.5")],
            vec!["options", "options.deep.where", "items"],
        );
        if protocol > 1 {
            names.push("slotted.table");
            values.push(("slotted.width", "4"));
            left_out.push("slotted");
        }
        assert_eq!((tensors(&file), attributes(&file), skipped(&file)), (as_texts(&names), values, left_out));
    }
}

fn as_texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn whole_module_is_refused_but_its_parameters_are_in_it() {
    let path = data("pt_more/refused_module.pt");
    let file = ForeignOptions::new().skip_unreadable(true).open(path).unwrap();
    assert_eq!(tensors(&file), ["inner._parameters.weight", "inner._parameters.bias"]);
    assert_eq!(file.attributes()["inner.in_features"], "1");
}

#[test]
fn tensors_with_attributes_and_buffers_are_tensors() {
    let file = open("attributes");
    assert_eq!(tensors(&file), ["parameter", "plain", "buffer", "frozen"]);
    assert_eq!(file.attributes().len(), 0);
    assert_eq!(file.load("plain").unwrap().read::<i64>().unwrap(), [0, 1, 2]);
}

#[test]
fn tensors_of_other_kinds_are_left_out_even_if_they_have_attributes_or_are_in_an_object() {
    let file = open_skipping("sparse");
    assert_eq!((tensors(&file), skipped(&file)), (as_texts(&["w"]), vec!["sparse", "buffer"]));
    for skipped in file.skipped() {
        assert!(skipped.reason.to_string().contains("sparse_tensor"), "{skipped:?}");
    }
    // The object is named, and the tensor in it that is lost, but not the object in it whose items are read.
    let file = open_skipping("within");
    assert_eq!(tensors(&file), ["state_dict.w"]);
    assert_eq!(attributes(&file), [("options.lr", "0.1")]);
    assert_eq!(skipped(&file), ["within", "state_dict.q"]);
}

#[test]
fn parts_of_a_state_that_only_its_class_knows_are_no_values() {
    let file = open_skipping("arrays");
    assert_eq!((tensors(&file), skipped(&file)), (as_texts(&["w"]), vec!["np", "last"]));
    assert_eq!(attributes(&file), []);
}

#[test]
fn names_of_several_values_are_told_apart() {
    // A dot in a key has a backslash, if the name would otherwise be that of another value.
    let twice = open("twice");
    assert_eq!(twice.load("a.b").unwrap().read::<f32>().unwrap(), [1.]);
    assert_eq!(twice.load("a\\.b").unwrap().read::<f32>().unwrap(), [0.]);
    let place = Place::new();
    let file = |pairs: &[(&[u8], &[u8])]| {
        let pairs: Vec<u8> = pairs.iter().flat_map(|(key, value)| [*key, *value].concat()).collect();
        place.file("x.pt", &legacy(&[b"\x80\x02}(", &pairs[..], b"u."].concat(), &[]))
    };
    let dotted: &[(&[u8], &[u8])] = &[
        (&text("a.b.c"), b"K\x01"),
        (&text("a.b"), &[&b"}"[..], &text("c"), b"K\x02s"].concat()),
        (&text("a"), &[&b"}"[..], &text("b.c"), b"K\x03s"].concat()),
        (&text("x.y"), b"K\x04"),
        (&text("p\\.q"), b"K\x05"),
    ];
    let found = ForeignFile::open(file(dotted)).unwrap();
    let expected = [("a.b\\.c", "3"), ("a\\.b.c", "2"), ("a\\.b\\.c", "1"), ("p\\.q", "5"), ("x.y", "4")];
    assert_eq!(attributes(&found), expected);
    // The key 1 and the key "1" have one name, in whatever way they are written.
    let path =
        file(&[(b"K\x01", b"K\x01"), (&text("1"), b"K\x02"), (&text("2"), b"K\x03"), (b"K\x01", b"K\x04")]);
    assert!(refusal(&path).contains("\"1\" is the name of two values"));
    let found = ForeignOptions::new().skip_unreadable(true).open(path).unwrap();
    assert_eq!((attributes(&found), skipped(&found)), (vec![("1", "1"), ("2", "3")], vec!["1", "1"]));
}

#[test]
fn checkpoint_without_checksums_is_imported_and_adopted() {
    for (name, count) in [("no_checksums", 5), ("skipped_data", 4)] {
        let place = Place::new();
        let path = data(&format!("pt_objects/{name}.pt"));
        place.import(&path).unwrap();
        let tensor = place.store.load("w").unwrap();
        assert_eq!(tensor.size(), [count]);
        if count == 5 {
            assert_eq!(tensor.read::<f32>().unwrap(), [0., 1., 2., 3., 4.]);
        }
    }
    // A checksum that is stated still counts, for the elements and for the pickle.
    let good = tensor(b"K\x02", b"K\x00", b"K\x02\x85", b"K\x01\x85");
    let file = archive(&[("m/data.pkl", &good), ("m/data/0", &[7; 8])]);
    let place = Place::new();
    for (content, said) in [(&[7; 8][..], "member \"m/data/0\""), (&good, "member \"m/data.pkl\"")] {
        let at = file.windows(content.len()).position(|bytes| bytes == content).unwrap();
        let mut damaged = file.clone();
        damaged[at + content.len() - 1] ^= 1;
        write_old(&place.path("x.pt"), &damaged);
        let error = place.import(&place.path("x.pt")).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("is damaged: its checksum"), "{error}");
    }
}

#[test]
fn old_protocols_of_pickle_are_read_in_the_old_layout() {
    for protocol in [0, 1] {
        let file = open(&format!("protocol{protocol}_legacy"));
        assert_eq!(attributes(&file), [("n", "1"), ("text", "é"), ("yes", "true")]);
    }
    let file = open("tensors1_legacy");
    assert_eq!(file.load("w").unwrap().read::<f32>().unwrap(), [0., 1., 2., 3.]);
    let file = open_skipping("quantized_legacy");
    assert_eq!((skipped(&file), tensors(&file)), (vec!["q"], as_texts(&["w"])));
    assert_eq!(file.load("w").unwrap().read::<f32>().unwrap(), [0., 1., 2., 3.]);
}

/// A checkpoint of a tensor, and of a value under the name `value`.
fn with_value(value: &[u8]) -> Vec<u8> {
    let good = tensor(b"K\x02", b"K\x00", b"K\x02\x85", b"K\x01\x85");
    let object = [good.strip_suffix(b".").unwrap(), &text("value"), value, b"s."].concat();
    legacy(&object, &[("0", &[0.5, 1.5])])
}

#[test]
fn values_that_are_too_large_for_attributes_are_tensors_of_bytes() {
    let place = Place::new();
    let numbers: Vec<u8> = (0..60_000u16).flat_map(|i| [&b"M"[..], &i.to_le_bytes()].concat()).collect();
    let list = [&b"]("[..], &numbers, b"e"].concat();
    let dict = |count: u16| {
        let entries: Vec<u8> = (0..count)
            .flat_map(|i| [&text(&format!("token {i}\n"))[..], b"M", &i.to_le_bytes()].concat())
            .collect();
        let lr = [&text("lr")[..], b"G\x3f\xb9\x99\x99\x99\x99\x99\x9au"].concat();
        [&b"}("[..], &text("vocab"), b"}(", &entries, b"u", &lr].concat()
    };
    let small = ForeignFile::open(place.file("x.pt", &with_value(&dict(9000)))).unwrap();
    assert_eq!((small.attributes().len(), small.long_attributes().len()), (9001, 0));
    let dict = dict(30_000);
    let long = text(&"é".repeat(600_000));
    for (value, name, kept) in [(&list, "value", 0), (&dict, "value.vocab", 1), (&long, "value", 0)] {
        let path = place.file("x.pt", &with_value(value));
        let file = ForeignFile::open(&path).unwrap();
        assert_eq!(
            (tensors(&file), file.long_attributes()),
            (as_texts(&["w", name]), &as_texts(&[name])[..])
        );
        assert_eq!((file.attributes().len(), file.load(name).unwrap().dtype()), (kept, DType::U8));
        stridemap_interop::import(&place.store, &path, "p.").unwrap();
        assert_eq!(place.store.load(&format!("p.{name}")).unwrap().read::<u8>().unwrap(), bytes(&file, name));
    }
    let json = |value: &[u8], name: &str| -> serde_json::Value {
        let file = ForeignFile::open(place.file("x.pt", &with_value(value))).unwrap();
        serde_json::from_slice(&bytes(&file, name)).unwrap()
    };
    assert_eq!(json(&list, "value"), serde_json::json!((0..60_000).collect::<Vec<_>>()));
    let vocab: BTreeMap<String, u16> = (0..30_000).map(|i| (format!("token {i}\n"), i)).collect();
    assert_eq!(json(&dict, "value.vocab"), serde_json::json!(vocab));
    let file = ForeignFile::open(place.file("x.pt", &with_value(&long))).unwrap();
    assert_eq!(bytes(&file, "value"), "é".repeat(600_000).into_bytes());
    // Whether they become attributes or bytes, many small values fit in the memory that a file may take.
    for count in [20_000, 30_000, 100_000, 300_000] {
        let value = [&b"]("[..], &vec![0x88; count], b"e"].concat();
        let file = ForeignFile::open(place.file("x.pt", &with_value(&value))).unwrap();
        assert_eq!(file.attributes().len(), if file.long_attributes().is_empty() { count } else { 0 });
    }
    // A list of few numbers stays attributes, beside one that does not.
    let few = [&b"](K\x01K\x02e"[..], b"](", &numbers, b"e\x86"].concat();
    let file = ForeignFile::open(place.file("x.pt", &with_value(&few))).unwrap();
    assert_eq!(attributes(&file), [("value.0.0", "1"), ("value.0.1", "2")]);
    assert_eq!(file.long_attributes(), ["value.1"]);
    // Of many values of one size, only as many move as must.
    let values: Vec<u8> =
        (10..22).flat_map(|i| [&text(&i.to_string())[..], &text(&"x".repeat(100_000))].concat()).collect();
    let file =
        ForeignFile::open(place.file("x.pt", &with_value(&[&b"}("[..], &values, b"u"].concat()))).unwrap();
    assert_eq!(
        (file.attributes().len(), file.long_attributes()),
        (10, &as_texts(&["value.20", "value.21"])[..])
    );
    // It is listed under the name that it gets, if another value has its name.
    let dotted = [&b"}("[..], &text("a.b"), &long, &text("a"), b"}", &text("b"), b"K\x01su"].concat();
    let file = ForeignFile::open(place.file("x.pt", &with_value(&dotted))).unwrap();
    assert_eq!(file.long_attributes(), ["value.a\\.b"]);
    assert_eq!(attributes(&file), [("value.a.b", "1")]);
}

#[test]
fn files_that_are_not_checkpoints_are_said_to_be_what_they_are() {
    let place = Place::new();
    for (bytes, said) in [
        (
            archive(&[
                ("m/data/weights/weight_0", &[0; 4]),
                ("m/archive_format", b"pt2"),
                ("m/.data/version", b"3"),
            ]),
            "a program saved by torch.export",
        ),
        (
            archive(&[("version", b"1"), ("serialized_exported_program.json", b"{}")]),
            "a program saved by torch.export",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n".to_vec(),
            "a pointer of Git LFS, not the file itself",
        ),
        (b"<!DOCTYPE html><html>404".to_vec(), "a web page"),
        (b"<HTML><head>".to_vec(), "a web page"),
    ] {
        let message = place.refuse("x.pt", &bytes);
        assert!(message.contains(said), "{message}");
    }
}
