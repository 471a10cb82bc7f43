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
        ("c=d", "import --rename: no tensor or value is named \"c\""),
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
    for skip in ["none", "none*", "a.n."] {
        let run = dir.run(&["import", "m.safetensors", "new.smap", "--skip", skip]);
        let expected = format!("stridemap: import --skip: no tensor or value matches {skip:?}\n");
        assert_eq!((run.code, run.stderr), (Some(1), expected));
        assert!(!dir.path("new.smap").exists());
    }
}

#[test]
fn options_that_would_have_no_effect_are_refused() {
    let dir = dir(&["a.w", "a.n", "b.n"]);
    for (options, refusal) in [
        (["--rename", "a.w=x", "--rename", "a.w=y"], "import --rename: \"a.w\" is renamed twice"),
        (
            ["--rename", "a.n=x", "--skip", "*.n"],
            "import: \"a.n\" is both renamed and left out by --skip or --only",
        ),
        (["--skip", "*.n", "--skip", "b.n"], "import --skip: \"b.n\" matches only what is already left out"),
    ] {
        assert_eq!(dir.refusal(&[&["import", "m.safetensors", "s.smap"][..], &options].concat()), refusal);
    }
}

#[test]
fn rename_by_pattern_renames_every_tensor_that_matches() {
    let dir = dir(&["module.a.gamma", "module.b", "c", "x*y"]);
    let renames = ["--rename", "module.*.gamma=*.weight", "--rename", "module.*=*", "--rename", "x*y=z*"];
    dir.messages(&[&["import", "m.safetensors", "s.smap"][..], &renames].concat());
    // The name of a tensor is not a pattern, and a rename by name comes before patterns.
    assert_eq!(dir.store().names().unwrap(), ["a.weight", "b", "c", "z*"]);
    for (rename, code, refusal) in [
        (
            "module.*=x",
            2,
            "import --rename \"module.*=x\": the old name has 1 *, and the new one 0; each stands for",
        ),
        ("none.*=*", 1, "import --rename: no tensor or value matches \"none.*\""),
        ("module.*=c", 2, "import --rename \"module.*=c\""),
        ("*=*", 0, ""),
        ("module.*=c*", 0, ""),
    ] {
        let run = dir.run(&["import", "-n", "m.safetensors", "new.smap", "--rename", rename]);
        assert_eq!(run.code, Some(code), "{rename}: {}", run.stderr);
        assert!(run.stderr.contains(refusal), "{}", run.stderr);
    }
    let run =
        dir.run(&["import", "m.safetensors", "new.smap", "--rename", "module.*.gamma=c", "--rename", "c=d"]);
    assert!(run.stderr.contains("the old name has 1 *, and the new one 0"), "{}", run.stderr);
    let refusal = dir.refusal(&["import", "m.safetensors", "new.smap", "--rename", "*.b=c", "--skip", "x*y"]);
    assert!(refusal.contains("the old name has 1 *"), "{refusal}");
    let refusal =
        dir.refusal(&["import", "m.safetensors", "new.smap", "--rename", "c=x", "--only", "module"]);
    assert_eq!(refusal, "import: \"c\" is both renamed and left out by --skip or --only");
}

/// Writes a checkpoint of two tensors, a number, and an object of an unknown class that contains a number.
fn write_checkpoint(dir: &Dir) {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let storage = b"(X\x07\0\0\0storagectorch\nByteStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ";
    let tensor =
        [&b"ctorch._utils\n_rebuild_tensor_v2\n("[..], storage, b"K\x00K\x02\x85K\x01\x85\x89NtR"].concat();
    let object = [&b"capp\nConfig\n)\x81}"[..], &text("lr"), b"G\x3f\xe0\0\0\0\0\0\0sb"].concat();
    let model = [&b"}("[..], &text("w"), &tensor, &text("b"), &tensor, b"u"].concat();
    let items = [
        (text("state_dict"), model),
        (text("epoch"), b"K\x03".to_vec()),
        (text("config"), object),
        (text("state_dict_ema"), tensor.clone()),
    ];
    let items: Vec<u8> = items.into_iter().flat_map(|(key, value)| [key, value].concat()).collect();
    let mut file = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    file.extend(b"\x80\x02}X\x0d\0\0\0little_endian\x88s.");
    file.extend([&b"\x80\x02}("[..], &items, b"u.\x80\x02]"].concat());
    file.extend([&text("0")[..], b"a.", &2u64.to_le_bytes(), &[7, 8]].concat());
    dir.write("c.pt", &file);
}

#[test]
fn only_selects_a_part_and_the_rest_need_not_be_readable() {
    let dir = Dir::empty();
    write_checkpoint(&dir);
    let refusal = dir.refusal(&["import", "c.pt", "s.smap"]);
    let unreadable = "read c.pt: \"config\" calls app.Config, which is code and is not run";
    assert!(
        refusal.starts_with(unreadable) && refusal.ends_with("; --skip-unreadable leaves it out"),
        "{refusal}"
    );
    // Commands that only look show what they can read.
    let run = dir.run(&["ls", "-1", "c.pt"]);
    assert_eq!(run.stdout, "state_dict.b\nstate_dict.w\nstate_dict_ema\n");
    assert!(run.stderr.starts_with("stridemap: not shown: config: read c.pt: "), "{}", run.stderr);
    assert_eq!((run.code, run.stderr.lines().count()), (Some(0), 1), "{}", run.stderr);
    let run = dir.run(&["diff", "c.pt", "c.pt"]);
    assert!(run.stdout.starts_with("equal: 3 tensors"), "{run:?}");
    let said = "stridemap: diff: 2 values could not be read; the others were compared\n";
    assert_eq!((run.code, run.stderr.ends_with(said)), (Some(2), true), "{run:?}");
    let import = |store: &str, options: &[&str]| {
        let said = dir.messages(&[&["import", "c.pt", store][..], options].concat());
        let attributes = dir.stdout(&["attr", "list", store]);
        let keys: Vec<&str> = attributes.lines().filter_map(|line| line.split('\t').next()).collect();
        (dir.stdout(&["ls", "-1", store]).replace('\n', " "), keys.join(" "), said.lines().count())
    };
    let outcome = |names: &str, keys: &str, lines| (names.to_owned(), keys.to_owned(), lines);
    let all = "state_dict.b state_dict.w state_dict_ema ";
    assert_eq!(import("a.smap", &["--skip-unreadable"]), outcome(all, "config.lr epoch", 2));
    assert_eq!(import("b.smap", &["--only", "state_dict"]), outcome("state_dict.b state_dict.w ", "", 1));
    let renamed = ["--only", "state_dict", "--rename", "state_dict.*=*", "--only", "epoch"];
    assert_eq!(import("c.smap", &renamed), outcome("b w ", "epoch", 1));
    // Values are renamed with the tensors.
    let renamed = ["--skip-unreadable", "--rename", "*=p.*", "--rename", "epoch=step"];
    let tensors = "p.state_dict.b p.state_dict.w p.state_dict_ema ";
    assert_eq!(import("r.smap", &renamed), outcome(tensors, "p.config.lr step", 2));
    assert_eq!(import("d.smap", &["--only", "*.w"]), outcome("state_dict.w ", "", 1));
    assert_eq!(import("e.smap", &["--skip", "config"]), outcome(all, "config.lr epoch", 1));
    assert_eq!(import("f.smap", &["--only", "epoch"]), outcome("", "epoch", 1));
    let skipped = ["--skip", "ep*", "--skip", "config", "--skip", "config.lr"];
    assert_eq!(import("h.smap", &skipped), outcome(all, "", 1));
    let refusal = dir.refusal(&["import", "c.pt", "g.smap", "--only", "config"]);
    assert!(refusal.starts_with(unreadable), "{refusal}");
    let run = dir.run(&["import", "c.pt", "g.smap", "--only", "state"]);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (Some(1), "stridemap: import --only: no tensor or value matches \"state\"\n")
    );
}

#[test]
fn value_that_is_too_large_for_an_attribute_is_said_to_be_a_tensor() {
    let dir = Dir::empty();
    let long = "x".repeat(1 << 20);
    let header = format!(
        r#"{{"__metadata__":{{"long":"{long}"}},"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#
    );
    dir.write_safetensors("m.safetensors", &header, &[7]);
    for (args, count) in [
        (&["import", "m.safetensors", "s.smap"][..], 2),
        (&["import", "--in-place", "m.safetensors", "t.smap"], 2),
    ] {
        let said = dir.messages(args);
        let note = "note: m.safetensors: 1 value is too large for an attribute, and saved as a tensor of bytes: long\n";
        assert!(said.contains(note), "{said}");
        assert_eq!(dir.stdout(&["ls", "-1", args[args.len() - 1]]).lines().count(), count);
    }
    assert_eq!(dir.store().load("long").unwrap().read::<u8>().unwrap(), long.as_bytes());
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
    let refusal = dir.refusal(&["import", "m.safetensors", "m.safetensors", "s.smap"]);
    assert!(refusal.contains("both have a tensor \"a\", and 1 more of the names clash; "), "{refusal}");
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
