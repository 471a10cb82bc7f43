//! Tagged generations in the arguments of other commands.

use std::fs;

use serde_json::{Value, json};

use super::with_tags;

#[test]
fn generation_is_named_by_its_number_while_it_is_kept() {
    let dir = with_tags();
    assert_eq!(dir.stdout(&["ls", "s.smap@3"]), "a\nb\n");
    assert_eq!(dir.stdout(&["ls", "s.smap@6"]), "c\n");
    let refusal = dir.refusal(&["ls", "s.smap@2"]);
    assert_eq!(
        refusal,
        "open generation 2 of s.smap: it is not on disk, because no tag keeps it, and no process uses it; the newest is \
         generation 6"
    );
    // A tag wins.
    dir.messages(&["tag", "s.smap", "6", "--at", "v1"]);
    assert_eq!(dir.stdout(&["ls", "s.smap@6"]), "a\nb\n");
}

#[test]
fn commands_that_look_take_a_tagged_generation() {
    let dir = with_tags();
    assert_eq!(dir.stdout(&["ls", "s.smap@v1"]), "a\nb\n");
    assert_eq!(dir.stdout(&["ls", "s.smap@v2"]), "a\nc\n");
    let info = dir.json(&["info", "s.smap@v1"]);
    assert_eq!(info["store"]["path"], json!("s.smap@v1"));
    assert_eq!((&info["store"]["generation"], &info["store"]["tensor_count"]), (&json!(3), &json!(2)));
    assert_eq!(dir.stdout(&["show", "s.smap@v1", "a[:3]"]), "tensor([1, 1, 1], dtype=uint8)\n");
    assert_eq!(dir.json(&["stats", "s.smap@v2", "a"])["max"], json!(3));
    assert!(dir.stdout(&["tree", "s.smap@v1"]).starts_with("s.smap@v1\t"));
    assert!(dir.stdout(&["du", "--map", "s.smap@v1"]).contains("\tb\t"));
    assert!(!dir.stdout(&["plot", "s.smap@v1", "a"]).is_empty());
    dir.messages(&["report", "s.smap@v1", "-o", "r.html"]);
    assert!(fs::read_to_string(dir.path("r.html")).unwrap().contains("s.smap@v1"));
    assert_eq!(dir.stdout(&["attr", "get", "s.smap@v2", "step"]), "2\n");
    assert_eq!(dir.stdout(&["attr", "list", "s.smap@v1"]), "");
    assert_eq!(dir.stdout(&["verify", "s.smap@v1"]), "ok\n");
    assert_eq!(dir.stdout(&["verify", "s.smap@v1", "b"]), "ok\n");

    let diff = dir.run(&["diff", "s.smap@v1", "s.smap@v2", "--json"]);
    assert_eq!(diff.code, Some(1));
    let diff: Value = serde_json::from_str(&diff.stdout).unwrap();
    assert_eq!(diff["b"]["path"], json!("s.smap@v2"));
    let kinds: Vec<_> =
        diff["tensors"].as_array().unwrap().iter().map(|it| (&it["name"], &it["kind"])).collect();
    assert_eq!(
        kinds,
        [
            (&json!("a"), &json!("values")),
            (&json!("b"), &json!("only_in_a")),
            (&json!("c"), &json!("only_in_b"))
        ]
    );

    dir.messages(&["export", "s.smap@v1", "b.npy", "b"]);
    dir.messages(&["export", "s.smap@v1", "copy.smap"]);
    assert_eq!(dir.stdout(&["diff", "copy.smap", "s.smap@v1"]), "equal: 2 tensors, 19.53 KiB\n");
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "c\n");
}

#[test]
fn path_that_exists_wins_over_a_tag() {
    let dir = with_tags();
    dir.messages(&["export", "s.smap@v1", "b.npy", "b"]);
    fs::rename(dir.path("b.npy"), dir.path("s.smap@v1")).unwrap();
    assert_eq!(dir.stdout(&["info", "s.smap@v1"]).lines().nth(1).unwrap(), "format\tnpy");
}

#[test]
fn commands_that_change_the_store_refuse_a_tagged_generation() {
    let dir = with_tags();
    dir.write_npy("x.npy", "|u1", "(1,)", &[1]);
    for args in [
        &["rm", "s.smap@v1", "a"][..],
        &["mv", "s.smap@v1", "a", "x"],
        &["view", "s.smap@v1", "a", "x"],
        &["view", "s.smap@v1", "a[0]", "x"],
        &["append", "s.smap@v1", "a", "x.npy"],
        &["import", "x.npy", "s.smap@v1"],
        &["attr", "set", "s.smap@v1", "k", "v"],
        &["tag", "s.smap@v1"],
        &["tag", "-d", "s.smap@v1", "v1"],
        &["tag", "s.smap@v1", "new", "--at", "v2"],
        &["restore", "s.smap@v1", "v1"],
        &["prune", "s.smap@v1", "--keep-last", "1"],
        &["compact", "s.smap@v1"],
        &["log", "s.smap@v1"],
        &["log", "s.smap@v1", "--follow"],
    ] {
        assert_eq!(
            dir.refusal(args),
            "s.smap@v1: a tagged generation can be looked at, but this command is about the newest one; name the store, \
             s.smap",
            "{args:?}"
        );
    }
    assert_eq!(
        dir.refusal(&["tag", "s.smap@v1", "new"]),
        "s.smap@v1: a tagged generation can be looked at, but this command is about the newest one; name the store, s.smap, \
         and the generation with --at v1"
    );
}

#[test]
fn show_says_which_tag_has_a_tensor_that_is_gone() {
    let dir = with_tags();
    let refusal = dir.refusal(&["show", "s.smap", "b[:2]"]);
    assert!(refusal.ends_with("; v1 has it: stridemap show s.smap@v1 'b[:2]'"), "{refusal}");
    assert!(dir.refusal(&["show", "s.smap", "a"]).ends_with("; v2 has it: stridemap show s.smap@v2 a"));
    assert!(!dir.refusal(&["show", "s.smap@v2", "b"]).contains("has it"));
    assert!(!dir.refusal(&["show", "s.smap", "x"]).contains("has it"));
}
