//! The tag of `--tag`, and what commands say about the tensors that they remove or replace.

use stridemap::Store;

use super::bytes;
use crate::harness::Dir;

#[test]
fn removed_or_replaced_tensors_are_said_to_be_kept_by_a_tag_or_lost() {
    let dir = Dir::with_store();
    dir.messages(&["tag", "s.smap", "v1"]);
    // A view can be made again, and the tag keeps it.
    assert_eq!(
        dir.stdout(&["rm", "s.smap", "points_t", "-n"]),
        "would remove points_t\nwould free nothing: other tensors use the bytes, such as points\nv1 keeps it; to get it back: stridemap restore s.smap v1 points_t\n"
    );
    assert_eq!(
        dir.messages(&["mv", "s.smap", "points_t", "points", "--force"]),
        "stridemap: renamed points_t to points, replacing float32 [3, 2]: generation 4\nstridemap: note: v1 keeps it; to \
         get it back: stridemap restore s.smap v1 points; -n shows what else that changes\n"
    );
    dir.messages(&["restore", "s.smap", "v1", "points"]);
    assert_eq!(dir.stdout(&["diff", "s.smap", "s.smap@v1"]), "equal: 3 tensors, 56 B\n");

    // No tag has the new tensor.
    dir.write_safetensors(
        "m.safetensors",
        r#"{"x":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#,
        &[0; 2],
    );
    let imported = "stridemap: imported 1 tensor, 2 B, into s.smap: generation ";
    assert_eq!(dir.messages(&["import", "m.safetensors", "s.smap"]), format!("{imported}6\n"));
    let lost = "no tag keeps it, so it cannot be brought back; --tag NAME tags the state before a change\n";
    assert_eq!(
        dir.messages(&["import", "m.safetensors", "s.smap", "--force"]),
        format!("{imported}7\nstridemap: note: {lost}")
    );
    assert_eq!(dir.stdout(&["rm", "s.smap", "x", "-n"]), format!("would remove x\nwould free 2 B\n{lost}"));
    assert_eq!(
        dir.messages(&["rm", "s.smap", "x", "--tag", "with x"]),
        "stridemap: removed x, with generation 7 tagged 'with x': generation 8\nstridemap: note: 'with x' keeps it; to get \
         it back: stridemap restore s.smap 'with x' x\n"
    );
    dir.messages(&["restore", "s.smap", "with x", "x"]);
    assert_eq!(dir.stdout(&["ls", "s.smap", "x"]), "x\n");
}

#[test]
fn tag_before_a_change_is_made_in_its_commit() {
    let dir = Dir::with_store();
    dir.write_npy("more.npy", "<f4", "(1, 2)", &[0; 8]);
    dir.write_safetensors(
        "m.safetensors",
        r#"{"x":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#,
        &[0; 2],
    );
    dir.store().create_growable("log", stridemap::DType::F32, &[3, 2], 9).unwrap();
    for (index, args) in [
        &["view", "s.smap", "points[0]", "first"][..],
        &["view", "s.smap", "points", "again"],
        &["mv", "s.smap", "again", "moved"],
        &["append", "s.smap", "log", "more.npy"],
        &["import", "m.safetensors", "s.smap"],
        &["attr", "set", "s.smap", "k", "v"],
        &["attr", "rm", "s.smap", "k"],
        &["rm", "s.smap", "moved"],
    ]
    .iter()
    .enumerate()
    {
        let (before, tag) = (dir.store().generation(), format!("t{index}"));
        let run = dir.run(&[args, &["--tag", &tag][..]].concat());
        assert_eq!(run.code, Some(0), "{args:?}: {run:?}");
        assert!(
            run.stderr.is_empty() || run.stderr.contains(&format!(", with generation {before} tagged {tag}")),
            "{run:?}"
        );
        let store = dir.store();
        assert_eq!(store.generation(), before + 1, "{args:?}");
        assert_eq!(store.tags().unwrap().last().unwrap().generation, before, "{args:?}");
    }
    // --force replaces tensors, but not the tag.
    assert_eq!(
        dir.refusal(&["import", "m.safetensors", "s.smap", "--force", "--tag", "t0"]),
        "--tag t0: the tag exists; choose a different name"
    );
    assert_eq!(
        dir.refusal(&["import", "m.safetensors", "new.smap", "--tag", "t0"]),
        "import --tag t0: there is no store yet whose state could be tagged; to tag what is imported, run this afterwards: \
         stridemap tag new.smap t0"
    );
    let refusal = dir.refusal(&["import", "m.safetensors", "new.smap", "--tag", "a b"]);
    assert!(refusal.ends_with("afterwards: stridemap tag new.smap 'a b'"), "{refusal}");
    // A dry run makes the tag, too, and drops it.
    for args in [
        &["view", "s.smap", "points[0]", "new"][..],
        &["view", "s.smap", "points", "new"],
        &["mv", "s.smap", "points", "new"],
        &["append", "s.smap", "log", "more.npy"],
        &["import", "m.safetensors", "s.smap", "--force"],
        &["attr", "set", "s.smap", "k", "v"],
        &["attr", "rm", "s.smap", "format"],
        &["rm", "s.smap", "first"],
        &["restore", "s.smap", "t0"],
    ] {
        let refusal = dir.refusal(&[args, &["--tag", "t0", "-n"]].concat());
        assert_eq!(refusal, "--tag t0: the tag exists; choose a different name", "{args:?}");
        let run = dir.run(&[args, &["--tag", "not yet", "-n"]].concat());
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{args:?}: {run:?}");
    }
    assert!(dir.store().tags().unwrap().iter().all(|tag| tag.name != "not yet"));
}

/// Creates a store with the tensors `x.a`, `x.b` and `x.c`, and the tag `v1`.
fn with_x() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.write(|txn| ["x.a", "x.b", "x.c"].iter().try_for_each(|name| txn.save(name, &bytes(1)))).unwrap();
    store.tag("v1").unwrap();
    dir
}

#[test]
fn what_restoring_changes_besides_is_announced() {
    // An attribute that was set since.
    let dir = with_x();
    dir.stdout(&["attr", "set", "s.smap", "unit", "m", "--of", "x.a"]);
    let said = dir.messages(&["view", "s.smap", "x.a[:2]", "x.a", "--force"]);
    assert!(
        said.ends_with(
            "v1 keeps it; to get it back: stridemap restore s.smap v1 x.a; -n shows what else that changes\n"
        ),
        "{said}"
    );
    assert!(dir.stdout(&["restore", "s.smap", "v1", "x.a", "-n"]).contains("\n@ unit of x.a\n"));

    // A tensor of which the tag has another version.
    let dir = with_x();
    dir.store().save("x.b", &bytes(2)).unwrap();
    let said = dir.messages(&["rm", "s.smap", "x.*"]);
    assert!(
        said.ends_with(
            "v1 keeps 2 of 3 tensors; to get those back: stridemap restore s.smap v1 x.; -n shows what else that changes\n"
        ),
        "{said}"
    );

    // The attributes of a removed tensor come back as they were.
    let dir = with_x();
    dir.stdout(&["attr", "set", "s.smap", "unit", "m", "--of", "x.a"]);
    dir.messages(&["tag", "s.smap", "v2"]);
    let said = dir.messages(&["rm", "s.smap", "x.a"]);
    assert!(said.ends_with("v2 keeps it; to get it back: stridemap restore s.smap v2 x.a\n"), "{said}");
    dir.messages(&["restore", "s.smap", "v2", "x.a"]);
    assert_eq!(dir.stdout(&["attr", "get", "s.smap", "unit", "--of", "x.a"]), "m\n");
}

#[test]
fn tensor_that_a_tag_has_under_another_name_is_found() {
    let dir = with_x();
    dir.messages(&["mv", "s.smap", "x.a", "y"]);
    let said = "no tag keeps it under this name, but v1 has it as x.a; to get it back: stridemap restore s.smap v1 x.a\n";
    assert!(dir.stdout(&["rm", "s.smap", "y", "-n"]).ends_with(said));
    assert!(dir.messages(&["rm", "s.smap", "y"]).ends_with(&format!("note: {said}")));
    dir.messages(&["restore", "s.smap", "v1", "x.a"]);
    assert_eq!(dir.stdout(&["diff", "s.smap", "s.smap@v1"]), "equal: 3 tensors, 29.30 KiB\n");

    // Of several, and one of the names is taken.
    dir.messages(&["mv", "s.smap", "x.a", "y.a"]);
    dir.messages(&["mv", "s.smap", "x.b", "y.b"]);
    dir.store().save("x.a", &bytes(2)).unwrap();
    dir.store().save("y.c", &bytes(2)).unwrap();
    let said = dir.messages(&["rm", "s.smap", "y.*"]);
    assert!(
        said.ends_with(
            "no tag keeps them under these names, but v1 has 2 of 3 tensors, such as y.a as x.a; to get those back: \
             stridemap restore s.smap v1 x. --tag NAME, which keeps the present state, too; -n shows what else that changes\n"
        ),
        "{said}"
    );
}

#[test]
fn bytes_that_no_tag_keeps_are_noted_beside_a_tensor_that_one_keeps() {
    let dir = with_x();
    let header = r#"{"p":{"dtype":"U8","shape":[9000],"data_offsets":[0,9000]},"q":{"dtype":"U8","shape":[9000],"data_offsets":[9000,18000]}}"#;
    dir.write_safetensors("m.safetensors", header, &[1; 18_000]);
    dir.messages(&["import", "m.safetensors", "s.smap"]);
    let said = dir.messages(&["rm", "s.smap", "x.a", "p"]);
    assert!(
        said.ends_with(
            "note: v1 keeps 1 of 2 tensors; to get that one back: stridemap restore s.smap v1 x.a\nstridemap: note: 8.81 KiB \
             are now unused, but remain in storages of other tensors, such as q; free them with stridemap compact s.smap\n"
        ),
        "{said}"
    );
    // The storage of the other one is kept whole.
    dir.messages(&["tag", "s.smap", "v2"]);
    dir.messages(&["view", "s.smap", "q", "r"]);
    let said = dir.messages(&["rm", "s.smap", "q"]);
    assert!(!said.contains("compact"), "{said}");
}

#[test]
fn printed_command_can_be_run_in_a_shell() {
    let dir = Dir::empty();
    let (path, tag) = ("my $HOME's store.smap", "-v`1`");
    let names = ["-w\n1", "-w'\\2", "-w\u{202e}3"];
    let store = Store::create(dir.path(path)).unwrap();
    store.write(|txn| names.iter().try_for_each(|name| txn.save(name, &bytes(1)))).unwrap();
    store.tag(tag).unwrap();
    let others = ["'q'", "'r"];
    store.write(|txn| others.iter().try_for_each(|name| txn.save(name, &bytes(1)))).unwrap();
    store.tag("-2").unwrap();
    for name in names.iter().chain(&others) {
        let said = dir.messages(&["rm", "--", path, &crate::harness::quoted(name)]);
        let (_, command) = said.split_once("to get it back: ").unwrap();
        let bin = std::path::Path::new(env!("CARGO_BIN_EXE_stridemap")).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut bash = std::process::Command::new("bash");
        let run = bash.args(["-c", command]).current_dir(dir.path("")).env("PATH", path).output().unwrap();
        assert!(run.status.success(), "{command}: {run:?}");
        assert!(store.latest().unwrap().contains(name).unwrap(), "{name:?}");
    }
}

#[test]
fn attr_says_which_state_it_tagged() {
    let dir = with_x();
    let before = dir.store().generation();
    assert_eq!(
        dir.messages(&["attr", "set", "s.smap", "unit", "m", "--of", "x.a", "--tag", "before"]),
        format!(
            "stridemap: set unit of x.a, with generation {before} tagged before: generation {}\n",
            before + 1
        )
    );
    assert_eq!(
        dir.messages(&["attr", "rm", "s.smap", "unit", "--of", "x.a", "--tag", "v2"]),
        format!(
            "stridemap: removed unit of x.a, with generation {} tagged v2: generation {}\n",
            before + 1,
            before + 2
        )
    );
    assert_eq!(dir.messages(&["attr", "set", "s.smap", "unit", "m"]), "");
}

#[test]
fn names_that_still_have_the_elements_from_before_are_said() {
    let dir = Dir::empty();
    let expert = |value: f32| {
        let store = Store::create(dir.path(format!("{value}.smap"))).unwrap();
        store.save("e.0", &[value; 2]).unwrap();
        store.save("other", &[value]).unwrap();
        dir.messages(&["export", &format!("{value}.smap"), &format!("{value}.safetensors")]);
    };
    [1f32, 2.].into_iter().for_each(expert);
    dir.messages(&["import", "1.safetensors", "s.smap"]);
    let first = dir.messages(&["view", "s.smap", "e.0[:1]", "part"]);
    assert!(!first.contains("from before"), "{first}");
    let said = dir.messages(&["import", "2.safetensors", "s.smap", "--force"]);
    let note = "note: part shared bytes with e.0, and still has the elements from before\n";
    assert!(said.ends_with(note), "{said}");
    assert_eq!(dir.stdout(&["show", "s.smap", "part"]), "tensor([1.])\n");
    // Nothing is left behind of what no other name had, and of what is replaced by its own view.
    assert!(!dir.messages(&["import", "1.safetensors", "s.smap", "--force"]).contains("from before"));
    let copied = dir.messages(&["copy", "1.smap", "other", "s.smap", "--force"]);
    assert!(!copied.contains("from before"), "{copied}");
}

#[test]
fn advice_to_restore_what_was_converted_works_as_it_is_printed() {
    let dir = Dir::with_store();
    let said = dir.messages(&["convert", "s.smap", "points*", "--to", "float16", "--tag", "wide"]);
    let advice = said.split("to get them back: stridemap ").nth(1).unwrap();
    let command = advice.split(", which keeps the present state").next().unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    assert!(command.ends_with("--tag NAME"), "{said}");
    dir.messages(&words);
    assert!(dir.stdout(&["ls", "-l", "s.smap", "points"]).contains("float32"));
    assert!(dir.stdout(&["ls", "-l", "s.smap@NAME", "points"]).contains("float16"));
}
