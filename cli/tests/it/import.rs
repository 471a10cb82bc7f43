//! Which tensors an import takes, under which names, and what it leaves behind when it fails.

use std::fs;
use std::process::Stdio;

use crate::harness::{Dir, tree};

fn header(names: &[&str]) -> String {
    let entry = |(i, name): (usize, &&str)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}"#, 2 * i, 2 * i + 2)
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    format!("{{{}}}", entries.join(","))
}

fn dir(names: &[&str]) -> Dir {
    let dir = Dir::empty();
    let elements: Vec<u8> = (0..2 * names.len() as u8).collect();
    dir.write_safetensors("m.safetensors", &header(names), &elements);
    dir
}

#[test]
fn processes_that_create_the_same_store_all_import_into_it() {
    let dir = dir(&["a"]);
    for round in 0..5 {
        let store = format!("{round}.smap");
        let start = |n: u32| {
            dir.command(&["import", "m.safetensors", &store, "--prefix", &format!("p{n}.")])
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let children: Vec<_> = (0..6).map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(dir.stdout(&["ls", &store]).lines().count(), 6);
    }
}

#[test]
fn rename_gives_a_tensor_another_name_and_an_empty_name_a_name() {
    let dir = dir(&["a", "", "b=c", "x y"]);
    let refusal = dir.refusal(&["import", "m.safetensors", "s.smap"]);
    assert!(
        refusal.ends_with("give it another name with --rename, or leave it out with --skip"),
        "{refusal}"
    );
    let renames = ["--rename", "=empty", "--rename", "b=c=d=e", "--rename", "'x y'=z", "--prefix", "p."];
    let args = [&["import", "m.safetensors", "s.smap"][..], &renames].concat();
    let planned = dir.stdout(&[&args[..], &["-n"]].concat());
    assert!(
        planned.ends_with("  p.a, uint8 [2]\n  p.empty, uint8 [2]\n  p.d=e, uint8 [2]\n  p.z, uint8 [2]\n"),
        "{planned}"
    );
    assert!(!dir.messages(&args).contains("note"));
    let said = dir.messages(&["import", "m.safetensors", "word.smap", "--prefix", "w", "--rename", "=empty"]);
    assert!(
        said.starts_with("stridemap: note: --prefix has no dot at its end, so the names are like w"),
        "{said}"
    );
    assert_eq!(dir.stdout(&["ls", "-1", "s.smap"]), "p.a\np.d=e\np.empty\np.z\n");
    let store = dir.store();
    assert_eq!(store.load("p.empty").unwrap().read::<u8>().unwrap(), [2, 3]);
    assert_eq!(store.load("p.d=e").unwrap().read::<u8>().unwrap(), [4, 5]);
}

#[test]
fn rename_of_an_unknown_name_and_to_an_existing_name_are_refused() {
    let dir = dir(&["a", "b"]);
    for (rename, refusal) in [
        ("c=d", "import --rename: no tensor is named \"c\""),
        ("a", "import --rename \"a\": write OLD=NEW"),
        ("a=b", "rename m.safetensors: two tensors would be named \"b\""),
    ] {
        assert_eq!(dir.refusal(&["import", "m.safetensors", "s.smap", "--rename", rename]), refusal);
    }
    dir.messages(&["import", "m.safetensors", "s.smap", "--rename", "a=b", "--rename", "b=a"]);
    assert_eq!(dir.store().load("b").unwrap().read::<u8>().unwrap(), [0, 1]);
}

#[test]
fn skip_leaves_tensors_out_by_name_and_by_glob() {
    let dir = dir(&["a.w", "a.n", "b.n", "", "odd [name]"]);
    let skips = ["--skip", "*.n", "--skip", "", "--skip", "'odd [name]'"];
    let said = dir.messages(&[&["import", "m.safetensors", "s.smap"][..], &skips].concat());
    assert_eq!(said, "stridemap: imported 1 tensor, 2 B, into s.smap: generation 2\n");
    assert_eq!(dir.store().names().unwrap(), ["a.w"]);
    for skip in ["none", "none*", "a."] {
        let run = dir.run(&["import", "m.safetensors", "new.smap", "--skip", skip]);
        let expected = format!("stridemap: import --skip: no tensor matches {skip:?}\n");
        assert_eq!((run.code, run.stderr), (Some(1), expected));
        assert!(!dir.path("new.smap").exists());
    }
}

#[test]
fn options_that_would_have_no_effect_are_refused() {
    let dir = dir(&["a.w", "a.n", "b.n"]);
    for (options, refusal) in [
        (["--rename", "a.w=x", "--rename", "a.w=y"], "import --rename: \"a.w\" is renamed twice"),
        (["--rename", "a.n=x", "--skip", "*.n"], "import: \"a.n\" is both renamed and left out by --skip"),
        (["--skip", "*.n", "--skip", "b.n"], "import --skip: \"b.n\" matches only what is already left out"),
    ] {
        assert_eq!(dir.refusal(&[&["import", "m.safetensors", "s.smap"][..], &options].concat()), refusal);
    }
}

#[test]
fn skip_unreadable_names_what_it_leaves_out() {
    let dir = Dir::empty();
    let header = r#"{"good":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "six bits":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[1,4]}}"#;
    dir.write_safetensors("m.safetensors", header, &[7; 4]);
    let refusal = dir.refusal(&["import", "m.safetensors", "s.smap"]);
    assert!(refusal.ends_with("; --skip-unreadable leaves it out"), "{refusal}");
    let said = dir.messages(&["import", "m.safetensors", "s.smap", "--skip-unreadable", "--quiet"]);
    assert!(said.starts_with("stridemap: left out six bits: read m.safetensors: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(dir.store().names().unwrap(), ["good"]);
}

#[test]
fn name_in_two_files_is_refused_before_any_byte_is_copied() {
    let dir = dir(&["a", "b"]);
    dir.write_safetensors("n.safetensors", &header(&["c", "b"]), &[0; 4]);
    let before = tree(&dir.path(""));
    let refusal = dir.refusal(&["import", "m.safetensors", "n.safetensors", "s.smap"]);
    assert!(
        refusal.starts_with("import: m.safetensors and n.safetensors both have a tensor \"b\"; "),
        "{refusal}"
    );
    assert_eq!(tree(&dir.path("")), before);
    dir.messages(&["import", "m.safetensors", "n.safetensors", "s.smap", "--skip", "b"]);
    assert_eq!(dir.store().names().unwrap(), ["a", "c"]);
}

/// Writes a .npz file whose only array has a wrong checksum, which an import finds when it reads the elements.
fn write_damaged(dir: &Dir) {
    dir.messages(&["import", "m.safetensors", "source.smap"]);
    dir.messages(&["export", "source.smap", "damaged.npz"]);
    fs::remove_dir_all(dir.path("source.smap")).unwrap();
    let mut bytes = fs::read(dir.path("damaged.npz")).unwrap();
    // The elements, after the local header and the header of the array.
    let at = bytes.windows(3).position(|bytes| bytes == b"\n\x00\x01").unwrap();
    bytes[at + 1] ^= 1;
    dir.write("damaged.npz", &bytes);
}

#[test]
fn failed_import_leaves_no_store_and_deletes_nothing_that_it_did_not_write() {
    let dir = dir(&["a"]);
    dir.write_safetensors("other.safetensors", &header(&["b"]), &[0; 2]);
    write_damaged(&dir);
    fs::create_dir(dir.path("empty")).unwrap();
    let before = tree(&dir.path(""));
    for store in ["new.smap", "empty"] {
        dir.refusal(&["import", "other.safetensors", "damaged.npz", store]);
        dir.refusal(&["import", "damaged.npz", store]);
        assert_eq!(tree(&dir.path("")), before, "{store}");
    }
    dir.messages(&["import", "m.safetensors", "empty"]);
    assert_eq!(dir.stdout(&["ls", "empty"]), "a\n");
}
