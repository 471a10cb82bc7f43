//! The `export` command on files in other formats, and on several sources.

use std::fs;

use stridemap::{DType, StorageKind, Store, Tensor};
use stridemap_interop::gguf;

use crate::harness::{Dir, Run};
use crate::sources::checkpoints;

/// Writes a safetensors file with tensors of two bytes, which are `first` and the next number and so on.
fn write(dir: &Dir, file: &str, names: &[&str], first: u8) {
    let entry = |(i, name): (usize, &&str)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}"#, 2 * i, 2 * i + 2)
    };
    let metadata = format!(r#""__metadata__":{{"from":"{file}"}}"#);
    let entries: Vec<String> = [metadata].into_iter().chain(names.iter().enumerate().map(entry)).collect();
    let elements: Vec<u8> = (first..).take(2 * names.len()).collect();
    dir.write_safetensors(file, &format!("{{{}}}", entries.join(",")), &elements);
}

#[track_caller]
fn has(dir: &Dir, file: &str, expected: &[(&str, &str)]) {
    let names: String = expected.iter().map(|(name, _)| format!("{name}\n")).collect();
    assert_eq!(dir.stdout(&["ls", file]), names);
    for (name, elements) in expected {
        assert_eq!(dir.stdout(&["show", file, name]), format!("tensor({elements}, dtype=uint8)\n"), "{name}");
    }
}

#[test]
fn checkpoint_becomes_a_safetensors_file_with_the_same_tensors_and_values() {
    let dir = Dir::empty();
    for file in checkpoints() {
        let file = file.to_str().unwrap();
        let said = dir.run(&["export", file, "out.safetensors", "--force"]);
        if said.stderr.contains("safetensors cannot hold complex128") {
            let names = dir.stdout(&["ls", file]);
            let names: Vec<&str> = names.lines().filter(|name| *name != "complex128").collect();
            let said = dir.run(&[&["export", file, "out.safetensors", "--force"][..], &names].concat());
            assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{file}: {said:?}");
            let compared = dir.stdout(&[&["diff", file, "out.safetensors"][..], &names].concat());
            assert!(compared.starts_with("equal: "), "{file}: {compared}");
            continue;
        }
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{file}: {said:?}");
        // Only the file that was made says which library it is for.
        let compared = dir.stdout(&["diff", file, "out.safetensors"]);
        let compared = compared
            .strip_prefix("@ format\tonly in B: pt\nequal: ")
            .unwrap_or_else(|| panic!("{file}: {compared}"));
        assert!(compared.ends_with("; 1 attribute differs\n"), "{file}: {compared}");
    }
}

#[test]
fn file_of_each_format_becomes_a_file_of_each_other() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "a.npz", "--compress", "--order", "F"]);
    dir.messages(&["export", "a.npz", "b.safetensors", "points*"]);
    assert_eq!(dir.stdout(&["ls", "b.safetensors"]), "points\npoints_t\n");
    dir.messages(&["export", "b.safetensors", "c.npy", "points_t"]);
    dir.messages(&["export", "c.npy", "d.npz"]);
    assert_eq!(dir.stdout(&["show", "d.npz", "c"]), dir.stdout(&["show", "s.smap", "points_t"]));
    dir.write_npy("big.npy", ">u2", "(2,)", &[0, 1, 1, 0]);
    dir.messages(&["export", "big.npy", "x.safetensors"]);
    assert_eq!(dir.stdout(&["show", "x.safetensors"]), "tensor([  1, 256], dtype=uint16)\n");
    let piped = dir.command(&["export", "b.safetensors", "-", "--format", "npy", "points"]).output().unwrap();
    assert!(piped.status.success() && piped.stdout.starts_with(b"\x93NUMPY"), "{piped:?}");
}

#[test]
fn tensors_are_converted_on_the_way_to_a_file() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("m.smap")).unwrap();
    store.save("w", &[[1f32, -2.5, 1e6], [0.1, f32::NAN, 3.]]).unwrap();
    store.save_view("t", &store.load("w").unwrap().t().unwrap()).unwrap();
    store.save("count", &[1i64, 300]).unwrap();
    store.save("scalar", &2f64).unwrap();
    store.save("none", &Tensor::zeros(DType::F32, &[0, 3]).unwrap()).unwrap();
    dir.messages(&["export", "m.smap", "m.safetensors"]);
    // As in a store, floats become floats, and others stay.
    let planned = dir.stdout(&["export", "m.safetensors", "half.safetensors", "--to", "float16", "-n"]);
    assert!(planned.contains("5 tensors, 42 B") && planned.contains("\n  t, float16 [3, 2]\n"), "{planned}");
    assert!(!dir.path("half.safetensors").exists());
    fs::create_dir(dir.path("temporary")).unwrap();
    let mut export = dir.command(&["export", "m.safetensors", "half.safetensors", "--to", "fp16", "--json"]);
    let run = Run::of(export.env("TMPDIR", dir.path("temporary")).output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(
        run.stdout.contains(r#"{"name":"w","dtype":"float16","size":[2,3],"numel":6,"nbytes":12}"#),
        "{run:?}"
    );
    assert!(
        run.stderr.contains("1 tensor of another kind than float16 stays as it is, such as count, int64")
    );
    assert_eq!(fs::read_dir(dir.path("temporary")).unwrap().count(), 0);
    // What float16 makes of these numbers, and a transpose.
    let shown = dir.stdout(&["show", "half.safetensors", "t"]);
    let rows = ["[[ 1.0000,  0.1000],", "[-2.5000,     nan],", "[    inf,  3.0000]]"];
    assert!(rows.iter().all(|row| shown.contains(row)), "{shown}");
    dir.messages(&["convert", "m.smap", "*", "--to", "float16"]);
    let compared = dir.stdout(&["diff", "m.smap", "half.safetensors"]);
    assert!(compared.starts_with("equal: 5"), "{compared}");
    assert_eq!(dir.stdout(&["ls", "-l", "half.safetensors", "count"]), "count\tint64\t[2]\t16\n");
    // A tensor that is given by its name is always converted.
    dir.messages(&["export", "m.safetensors", "count.npy", "count", "--to", "uint8"]);
    assert_eq!(dir.stdout(&["show", "count.npy"]), "tensor([ 1, 44], dtype=uint8)\n");
    let refusal = dir.refusal(&["export", "m.smap", "copy.smap", "--to", "float16"]);
    assert!(refusal.contains("a copy of a store keeps its elements"), "{refusal}");
    let refusal =
        dir.refusal(&["export", "m.safetensors", "packed.safetensors", "w", "--to", "float4_e2m1fn_x2"]);
    assert!(refusal.contains("float4_e2m1fn_x2"), "{refusal}");
    let mut export = dir.command(&["export", "m.safetensors", "x.safetensors", "--to", "fp16"]);
    let run = Run::of(export.env("TMPDIR", dir.path("missing")).output().unwrap());
    assert!(
        run.stderr.contains("export none: convert it to float16 in") && run.stderr.contains("TMPDIR"),
        "{run:?}"
    );
}

#[test]
fn converting_export_locks_one_mutable_tensor_at_a_time() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("m.smap")).unwrap();
    let save = |name: &str| store.write(|txn| txn.save_as(name, &[1f32, 2.], StorageKind::Mutable)).unwrap();
    ["a", "b"].iter().for_each(|name| save(name));
    let mut guard = store.load("b").unwrap().lock_exclusive().unwrap();
    let mut export =
        dir.command(&["export", "m.smap", "half.safetensors", "--to", "float16"]).spawn().unwrap();
    // The export waits for b, and lets others have a.
    std::thread::sleep(std::time::Duration::from_millis(300));
    store.load("a").unwrap().lock_exclusive().unwrap().fill_(5f32).unwrap();
    guard.fill_(7f32).unwrap();
    drop(guard);
    assert!(export.wait().unwrap().success());
    assert_eq!(dir.stdout(&["show", "half.safetensors", "b"]), "tensor([7., 7.], dtype=float16)\n");
}

#[test]
fn quantized_blocks_and_ties_stay_right_in_a_converting_export() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("m.smap")).unwrap();
    store.save("embed", &[1f32; 12]).unwrap();
    store.save_view("head", &store.load("embed").unwrap()).unwrap();
    store.save("blocks", &Tensor::zeros(DType::U8, &[1, 1, 34]).unwrap()).unwrap();
    store.write(|txn| txn.set_attribute("blocks", gguf::TYPE_KEY, "Q8_0")).unwrap();
    let said = dir.messages(&["export", "m.smap", "wide.safetensors", "--to", "float64"]);
    assert!(
        said.contains("stores them twice (up to 96 B extra)") && !said.contains("another kind"),
        "{said}"
    );
    assert_eq!(dir.stdout(&["ls", "-l", "wide.safetensors", "blocks"]), "blocks\tuint8\t[1, 1, 34]\t34\n");
    let refusal = dir.refusal(&["export", "m.smap", "x.npy", "blocks", "--to", "float32"]);
    assert!(refusal.contains("export blocks: its elements are the bytes of Q8_0"), "{refusal}");
}

#[test]
fn names_globs_and_prefixes_split_a_file() {
    let dir = Dir::empty();
    write(&dir, "m.safetensors", &["enc.w", "enc.b", "head"], 1);
    dir.messages(&["export", "m.safetensors", "e.safetensors", "enc."]);
    has(&dir, "e.safetensors", &[("enc.b", "[3, 4]"), ("enc.w", "[1, 2]")]);
    dir.messages(&["export", "m.safetensors", "r.safetensors", "--prefix", "enc."]);
    has(&dir, "r.safetensors", &[("b", "[3, 4]"), ("w", "[1, 2]")]);
    // A forgotten dot would begin all names.
    let refusal = dir.refusal(&["export", "m.safetensors", "q.safetensors", "--prefix", "enc"]);
    assert!(
        refusal.contains("every name would begin with '.'; write --prefix enc., or -- before"),
        "{refusal}"
    );
    let shown = dir.stdout(&["export", "m.safetensors", "h.npz", "h*", "-n"]);
    assert_eq!(shown, "would write h.npz: 1 tensor, 2 B\n  head, uint8 [2]\n");
    let none = dir.run(&["export", "m.safetensors", "h.npz", "x*"]);
    assert_eq!((none.code, none.stderr.as_str()), (Some(1), "stridemap: no tensor matches \"x*\"\n"));
    assert!(dir.refusal(&["export", "m.safetensors", "h.npz", "haed"]).ends_with("did you mean \"head\"?"));
}

#[test]
fn several_sources_are_merged() {
    let dir = Dir::with_store();
    write(&dir, "a.safetensors", &["x", "y"], 1);
    write(&dir, "b.safetensors", &["z"], 7);
    let said = dir.messages(&["export", "a.safetensors", "b.safetensors", "s.smap", "all.safetensors", "?"]);
    let expected = "stridemap: note: a.safetensors and b.safetensors disagree on \"from\"; the last wins\n\
                    stridemap: exported 3 tensors, 6 B, to all.safetensors\n";
    assert_eq!(said, expected);
    has(&dir, "all.safetensors", &[("x", "[1, 2]"), ("y", "[3, 4]"), ("z", "[7, 8]")]);
    assert_eq!(dir.stdout(&["attr", "get", "s.smap", "format"]), "pt\n");
    let info = dir.stdout(&["info", "all.safetensors", "--all"]);
    assert!(info.contains("from = b.safetensors") && info.contains("format = pt"), "{info}");
    // A name that only one source has.
    dir.messages(&["export", "a.safetensors", "s.smap", "two.npz", "x", "points"]);
    assert_eq!(dir.stdout(&["ls", "two.npz"]), "points\nx\n");
    let none = dir.refusal(&["export", "a.safetensors", "s.smap", "two.npz", "pionts", "--force"]);
    assert!(none.starts_with("load \"pionts\": no tensor with this name; did you mean \"points\""), "{none}");
}

#[test]
fn same_name_in_two_sources_is_refused_unless_it_is_not_selected() {
    let dir = Dir::empty();
    write(&dir, "a.safetensors", &["x", "y"], 1);
    write(&dir, "b.safetensors", &["x", "z"], 7);
    let sources = ["export", "a.safetensors", "b.safetensors", "all.npz"];
    let refusal = dir.refusal(&sources);
    assert!(
        refusal.starts_with("export: a.safetensors and b.safetensors both have a tensor \"x\"; "),
        "{refusal}"
    );
    let refusal = dir.refusal(&["export", "a.safetensors", "a.safetensors", "all.npz"]);
    assert!(refusal.contains("both have a tensor \"x\", and 1 more of the names clash; "), "{refusal}");
    dir.messages(&[&sources[..], &["y", "z"]].concat());
    has(&dir, "all.npz", &[("y", "[3, 4]"), ("z", "[ 9, 10]")]);
}

#[test]
fn what_cannot_be_read_is_refused_or_left_out() {
    let dir = Dir::empty();
    let header = r#"{"good":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "six bits":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[1,4]}}"#;
    dir.write_safetensors("m.safetensors", header, &[7; 4]);
    for names in [&[][..], &["s*"], &["six bits"]] {
        let refusal = dir.refusal(&[&["export", "m.safetensors", "o.npz"], names].concat());
        assert!(refusal.ends_with("; --skip-unreadable leaves it out"), "{refusal}");
    }
    dir.messages(&["export", "m.safetensors", "good.npz", "good"]);
    let said = dir.messages(&["export", "m.safetensors", "o.npz", "--skip-unreadable"]);
    assert!(said.starts_with("stridemap: left out six bits: read m.safetensors: "), "{said}");
    assert_eq!(dir.stdout(&["ls", "o.npz"]), "good\n");
}

#[test]
fn file_to_write_is_the_last_word_that_ends_like_one() {
    let dir = Dir::with_store();
    write(&dir, "a.safetensors", &["x.npy"], 1);
    // In quotes or after --, it is a name.
    dir.messages(&["export", "a.safetensors", "o.npz", "'x.npy'"]);
    dir.messages(&["export", "a.safetensors", "p.npz", "--", "x.npy"]);
    for file in ["o.npz", "p.npz"] {
        assert_eq!(dir.stdout(&["ls", file]), "x.npy\n");
    }
    let refusal = dir.refusal(&["export", "a.safetensors", "q.npz", "x.npy"]);
    assert!(
        refusal.ends_with("that end like one: stridemap export a.safetensors q.npz -- x.npy"),
        "{refusal}"
    );
    // A source is not replaced.
    for args in
        [&["a.safetensors", "s.smap", "a.safetensors"][..], &["s.smap", "a.safetensors", "a.safetensors"]]
    {
        let refusal = dir.refusal(&[&["export"], args, &["--force"]].concat());
        assert!(refusal.contains("the tensors are read from this file; write to another path"), "{refusal}");
    }
    let refusal = dir.refusal(&["export", "-", "o.npz", "--force"]);
    assert!(refusal.starts_with("export -: only import reads standard input"), "{refusal}");
}

#[test]
fn copy_is_of_one_store() {
    let dir = Dir::with_store();
    write(&dir, "a.safetensors", &["x"], 1);
    let refusal = dir.refusal(&["export", "a.safetensors", "c.smap"]);
    assert!(refusal.ends_with("import it: stridemap import a.safetensors c.smap"), "{refusal}");
    for sources in [["s.smap", "a.safetensors"], ["s.smap", "s.smap"]] {
        let refusal = dir.refusal(&[&["export"], &sources[..], &["c.smap"]].concat());
        assert!(refusal.starts_with("export c.smap: a copy is of one store"), "{refusal}");
    }
}

#[test]
fn file_that_is_damaged_leaves_nothing_behind() {
    let dir = Dir::with_store();
    dir.messages(&["export", "s.smap", "m.npz", "points"]);
    let mut bytes = fs::read(dir.path("m.npz")).unwrap();
    let end = bytes.len() / 2;
    bytes.truncate(end);
    dir.write("cut.npz", &bytes);
    let refusal = dir.refusal(&["export", "cut.npz", "o.safetensors"]);
    assert!(refusal.starts_with("read cut.npz: "), "{refusal}");
}

#[test]
fn damaged_shard_of_a_model_in_pytorch_files_is_refused_by_its_checksum() {
    let dir = Dir::empty();
    let checkpoint = checkpoints().into_iter().find(|file| file.ends_with("pt/state_dict_zip.pt")).unwrap();
    fs::copy(checkpoint, dir.path("m.bin")).unwrap();
    let info = dir.json(&["info", "--all", "m.bin"]);
    let [name, id] = ["name", "storage"].map(|key| info["tensors"][0][key].as_str().unwrap().to_owned());
    let index = serde_json::json!({ "weight_map": { &name: "m.bin" } });
    dir.write("m.bin.index.json", index.to_string().as_bytes());
    dir.messages(&["export", "m.bin.index.json", "whole.safetensors", "--skip-unreadable", "-q", &name]);

    let storages = info["storages"].as_array().unwrap();
    let storage = storages.iter().find(|storage| storage["id"] == id.as_str()).unwrap();
    dir.flip("m.bin", storage["offset_bytes"].as_u64().unwrap() as usize);
    let refusal = dir.refusal(&["export", "m.bin.index.json", "x.safetensors", &name]);
    assert!(refusal.contains("of the zip file is damaged"), "{refusal}");
    assert!(!dir.path("x.safetensors").exists());
}

#[test]
fn forgotten_output_does_not_replace_the_last_source() {
    let dir = Dir::empty();
    write(&dir, "a.safetensors", &["x"], 1);
    write(&dir, "b.safetensors", &["y"], 5);
    let why = "export b.safetensors: the last file is the one to write, and this one has a tensor y that no source has; if it is a \
               source, name a file to write after it; if not, delete it first";
    for flags in [&["--force"][..], &["--force", "-n"]] {
        assert_eq!(dir.refusal(&[&["export", "a.safetensors", "b.safetensors"], flags].concat()), why);
    }
    has(&dir, "b.safetensors", &[("y", "[5, 6]")]);
    // An earlier merge, or a part of a file, is replaced.
    dir.messages(&["export", "a.safetensors", "b.safetensors", "ab.safetensors"]);
    write(&dir, "a.safetensors", &["x"], 3);
    dir.messages(&["export", "a.safetensors", "b.safetensors", "ab.safetensors", "--force"]);
    has(&dir, "ab.safetensors", &[("x", "[3, 4]"), ("y", "[5, 6]")]);
    dir.messages(&["export", "ab.safetensors", "b.safetensors", "x", "--force"]);
    has(&dir, "b.safetensors", &[("x", "[3, 4]")]);
}
