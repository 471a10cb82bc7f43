//! Attributes of tensors and prefixes: imported, exported, inspected and compared.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Dir, tree};
use crate::sources::checkpoints;

const MODEL: &str =
    r#"{"__metadata__":{"format":"pt","who":"a"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

/// Creates a store into which `m.safetensors` is imported twice, with and without a prefix.
fn imported_twice() -> Dir {
    let dir = Dir::empty();
    dir.write_safetensors("m.safetensors", MODEL, &[1; 8]);
    dir.messages(&["import", "m.safetensors", "s.smap"]);
    dir.messages(&["import", "m.safetensors", "s.smap", "--prefix", "enc."]);
    dir
}

#[test]
fn export_with_a_prefix_reverses_the_import_with_that_prefix() {
    let dir = imported_twice();
    let store = dir.store();
    store.write(|txn| txn.set_attribute("enc.", "who", "b")).unwrap();
    store.write(|txn| txn.set_attribute("enc.w", "unit", "m")).unwrap();
    assert_eq!((store.attributes("")["who"].as_str(), store.attributes("enc.").len()), ("a", 2));
    dir.messages(&["export", "s.smap", "out.safetensors", "--prefix", "enc."]);
    let listed = dir.stdout(&["ls", "out.safetensors"]);
    assert_eq!(listed, "w\n");
    dir.messages(&["import", "out.safetensors", "again.smap"]);
    let again = stridemap::Store::open(dir.path("again.smap")).unwrap();
    assert_eq!(again.attributes(""), store.attributes("enc."));
}

#[test]
fn library_of_a_model_is_in_the_metadata_of_each_file_that_is_made_of_it() {
    let dir = Dir::empty();
    let header = r#"{"__metadata__":{"format":"pt","author":"me"},"a.w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    dir.write_safetensors("m.safetensors", header, &[7]);
    dir.messages(&["import", "m.safetensors", "m.smap"]);
    let metadata = |file: &str| {
        let bytes = fs::read(dir.path(file)).unwrap();
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let header: Value = serde_json::from_slice(&rest[..u64::from_le_bytes(*length) as usize]).unwrap();
        header["__metadata__"].clone()
    };
    for source in ["m.smap", "m.safetensors"] {
        dir.messages(&["export", source, "all.safetensors", "--force"]);
        assert_eq!(metadata("all.safetensors"), json!({ "format": "pt", "author": "me" }), "{source}");
        dir.messages(&["export", source, "part.safetensors", "--prefix", "a.", "--force"]);
        assert_eq!(metadata("part.safetensors"), json!({ "format": "pt" }), "{source}");
    }
    let checkpoint = checkpoints().into_iter().find(|file| file.ends_with("pt/state_dict_zip.pt")).unwrap();
    dir.messages(&["export", checkpoint.to_str().unwrap(), "pt.safetensors"]);
    assert_eq!(metadata("pt.safetensors")["format"], "pt");
    // What the user has set wins.
    dir.messages(&["attr", "set", "m.smap", "format", "flax"]);
    dir.messages(&["export", "m.smap", "all.safetensors", "--force"]);
    assert_eq!(metadata("all.safetensors")["format"], "flax");
}

#[test]
fn prefix_without_tensors_for_a_copy_or_beside_names_is_refused() {
    let dir = imported_twice();
    let none = dir.run(&["export", "s.smap", "out.npz", "--prefix", "dec."]);
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stderr.starts_with("stridemap: export out.npz: no name begins with \"dec.\""), "{none:?}");
    let refusal = dir.refusal(&["export", "s.smap", "out.smap", "--prefix", "enc."]);
    assert!(refusal.contains("--prefix is for files in other formats"), "{refusal}");
    let both = dir.run(&["export", "s.smap", "out.npz", "w", "--prefix", "enc."]);
    assert!(both.code == Some(2) && both.stderr.contains("cannot be used with"), "{both:?}");
    assert!(!dir.path("out.npz").exists() && !dir.path("out.smap").exists());
}

#[test]
fn tensor_named_like_the_prefix_is_refused_as_it_has_no_name_without_it() {
    let dir = imported_twice();
    for out in ["out.safetensors", "out.npz"] {
        let refusal = dir.refusal(&["export", "s.smap", out, "--prefix", "enc.w"]);
        let expected = format!("export {out}: the tensor \"enc.w\" has no name without the prefix");
        assert!(refusal.contains(&expected), "{refusal}");
        assert!(!dir.path(out).exists());
    }
    dir.messages(&["export", "s.smap", "out.npy", "--prefix", "enc.w"]);
    assert!(dir.path("out.npy").exists());
}

#[test]
fn prefix_with_attributes_and_no_tensor_is_exported_where_the_format_has_attributes() {
    let dir = imported_twice();
    dir.store().write(|txn| txn.set_attribute("dec.", "who", "d")).unwrap();
    dir.messages(&["export", "s.smap", "out.safetensors", "--prefix", "dec."]);
    dir.messages(&["import", "out.safetensors", "again.smap"]);
    let again = stridemap::Store::open(dir.path("again.smap")).unwrap();
    assert_eq!((again.attributes("")["who"].as_str(), again.names().unwrap().len()), ("d", 0));
    let none = dir.run(&["export", "s.smap", "out.npz", "--prefix", "dec."]);
    assert!(none.code == Some(1) && none.stderr.contains("no name begins with \"dec.\""), "{none:?}");
}

#[test]
fn import_notes_an_attribute_of_the_prefix_that_it_replaces() {
    let dir = imported_twice();
    dir.store().write(|txn| txn.set_attribute("enc.", "who", "b")).unwrap();
    dir.store().write(|txn| txn.set_attribute("", "who", "c")).unwrap();
    let message = dir.messages(&["import", "m.safetensors", "s.smap", "--prefix", "enc.", "--force"]);
    assert!(message.contains("note: the \"who\" of m.safetensors replaces that of \"enc.\""), "{message}");
    assert_eq!(
        (dir.store().attributes("enc.")["who"].as_str(), &*dir.store().attributes("")["who"]),
        ("a", "c")
    );
}

#[test]
fn inspect_prints_the_attributes_of_each_scope() {
    let dir = imported_twice();
    dir.store().write(|txn| txn.set_attribute("odd [\n]", "k\u{7}", "v\n")).unwrap();
    let text = dir.stdout(&["info", "--all", "s.smap"]);
    insta::assert_snapshot!(&text[text.find("\nattributes").unwrap() + 1..], @r"
    attributes
      format = pt
      who = a

    attributes of enc.
      format = pt
      who = a

    attributes of 'odd [\n]'
      k\u{7} = v\n
    ");
    let json = dir.stdout(&["info", "--all", "s.smap", "--json"]);
    let expected = r#"}],"attributes":{"format":"pt","who":"a"},"attributes_of":{"enc.":{"format":"pt","who":"a"},"odd [\n]":{"k\u0007":"v\n"}}}"#;
    assert!(json.ends_with(&format!("{expected}\n")), "{json}");
}

#[test]
fn diff_compares_attributes_by_scope_and_key() {
    let dir = imported_twice();
    dir.messages(&["export", "s.smap", "b.smap"]);
    let b = stridemap::Store::open(dir.path("b.smap")).unwrap();
    assert!(dir.stdout(&["diff", "s.smap", "b.smap", "--strict"]).starts_with("equal: 2 tensors"));
    b.write(|txn| txn.set_attribute("enc.", "who", "b")).unwrap();
    b.write(|txn| txn.set_attribute("w", "who", "b")).unwrap();
    b.write(|txn| txn.remove_attribute("", "who")).unwrap();
    let text = dir.stdout(&["diff", "s.smap", "b.smap"]);
    insta::assert_snapshot!(text.replace('\t', " | "), @r"
    @ who | only in A: a
    @ who of enc. | a, b
    @ who of w | only in B: b
    equal: 2 tensors, 16 B; 3 attributes differ
    ");
    let json = dir.stdout(&["diff", "s.smap", "b.smap", "--json"]);
    let expected = concat!(
        r#""attributes":[{"key":"who","a":"a","b":null},{"scope":"enc.","key":"who","a":"a","b":"b"},"#,
        r#"{"scope":"w","key":"who","a":null,"b":"b"}],"#
    );
    assert!(json.contains(expected), "{json}");
}

#[test]
fn attr_sets_prints_and_removes_the_attributes_of_stores_tensors_and_prefixes() {
    let dir = Dir::with_store();
    let before = tree(&dir.path(""));
    assert_eq!(
        dir.stdout(&["attr", "set", "s.smap", "format", "np", "-n"]),
        "would set format to np, replacing pt\n"
    );
    assert_eq!(dir.stdout(&["attr", "rm", "s.smap", "format", "-n"]), "would remove format\n");
    for args in [&["attr", "get", "s.smap", "none"][..], &["attr", "rm", "s.smap", "none", "--of", "points"]]
    {
        let run = dir.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
        assert!(run.stderr.starts_with("stridemap: no attribute none"), "{run:?}");
    }
    assert!(tree(&dir.path("")) == before);

    for of in [&[][..], &["--of", "points"], &["--of", "'odd [name]'"], &["--of", "poi"]] {
        assert_eq!(dir.stdout(&[&["attr", "set", "s.smap", "unit", "km h"], of].concat()), "");
        assert_eq!(dir.stdout(&[&["attr", "get", "s.smap", "unit"], of].concat()), "km h\n");
    }
    assert_eq!(
        dir.messages(&["attr", "set", "s.smap", "unit", "m", "--of", "enc."]),
        "stridemap: note: no tensor name begins with enc.\n"
    );
    assert_eq!(dir.store().attributes("odd [name]")["unit"], "km h");
    let listed = dir.stdout(&["attr", "list", "s.smap"]);
    assert!(listed.contains("unit\tkm h\t\n") && listed.contains("unit\tkm h\todd [name]\n"), "{listed}");
    assert_eq!(dir.stdout(&["attr", "rm", "s.smap", "unit", "--of", "points"]), "");
    assert!(dir.store().attributes("points").is_empty());
    assert_eq!(dir.store().attributes("")["unit"], "km h");
}

#[test]
fn attributes_of_a_file_are_listed_and_printed() {
    let dir = imported_twice();
    assert_eq!(dir.stdout(&["attr", "list", "m.safetensors"]), "format\tpt\t\nwho\ta\t\n");
    assert_eq!(dir.stdout(&["attr", "get", "m.safetensors", "who"]), "a\n");
    let missing = dir.run(&["attr", "get", "m.safetensors", "who", "--of", "w"]);
    assert_eq!((missing.code, missing.stderr.as_str()), (Some(1), "stridemap: no attribute who of w\n"));
    assert!(dir.refusal(&["attr", "set", "m.safetensors", "who", "b"]).contains("import it first"));
}
