//! The `mv` command with globs and prefixes.

use stridemap::Tensor;

use crate::harness::Dir;

/// Creates a store with these tensors, each of one element.
fn with(names: &[&str]) -> Dir {
    let dir = Dir::empty();
    let store = stridemap::Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    for (index, name) in names.iter().enumerate() {
        txn.save(name, &Tensor::from_vec(vec![index as i64], &[1]).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    dir
}

/// Returns the names, each with its element.
fn listed(dir: &Dir) -> Vec<(String, i64)> {
    let store = dir.store();
    let element = |name: &String| store.load(name).unwrap().read::<i64>().unwrap()[0];
    store.names().unwrap().into_iter().map(|name| (name.clone(), element(&name))).collect()
}

fn pairs(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
    expected.iter().map(|(name, element)| ((*name).to_owned(), *element)).collect()
}

#[test]
fn glob_or_prefix_renames_all_that_match_in_one_commit() {
    for (old, new) in [("bert.*", "encoder.*"), ("bert.", "encoder.")] {
        let dir = with(&["be.a", "bert.a", "bert.b.c", "head"]);
        let said = dir.messages(&["mv", "s.smap", old, new]);
        let expected = "stridemap: renamed 2 tensors, such as bert.a to encoder.a: generation 3\n";
        assert_eq!(said, expected, "{old}");
        assert_eq!(listed(&dir), pairs(&[("be.a", 0), ("encoder.a", 1), ("encoder.b.c", 2), ("head", 3)]));
    }
    let dir = with(&["layers.0.attn.q", "layers.1.attn.k"]);
    dir.messages(&["mv", "s.smap", "layers.*.attn.*", "blocks.*.self.*"]);
    assert_eq!(listed(&dir), pairs(&[("blocks.0.self.q", 0), ("blocks.1.self.k", 1)]));
}

#[test]
fn prefix_is_removed_or_added() {
    let dir = with(&["module.a", "module.b"]);
    dir.messages(&["mv", "s.smap", "module.", ""]);
    assert_eq!(listed(&dir), pairs(&[("a", 0), ("b", 1)]));
    dir.messages(&["mv", "s.smap", "*", "m/*"]);
    assert_eq!(listed(&dir), pairs(&[("m/a", 0), ("m/b", 1)]));
    dir.messages(&["mv", "s.smap", "m/", "n."]);
    assert_eq!(listed(&dir), pairs(&[("n.a", 0), ("n.b", 1)]));
}

#[test]
fn dry_run_shows_every_rename_and_changes_nothing() {
    let dir = with(&["a.x", "a.y", "b.y"]);
    let args = &["mv", "s.smap", "a.*", "b.*"][..];
    assert_eq!(
        dir.refusal(&[args, &["-n"]].concat()),
        "mv: \"a.y\" would become \"b.y\", which exists, int64 [1]; --force replaces it"
    );
    let shown = dir.stdout(&[args, &["-n", "--force"]].concat());
    assert!(
        shown.starts_with(
            "would rename a.x to b.x\nwould rename a.y to b.y, replacing int64 [1]\nno tag keeps it"
        ),
        "{shown}"
    );
    assert_eq!(dir.store().generation(), 2);
    dir.messages(&[args, &["--force"]].concat());
    assert_eq!(listed(&dir), pairs(&[("b.x", 0), ("b.y", 1)]));
}

#[test]
fn uncertain_or_colliding_names_are_refused_before_anything_changes() {
    let dir = with(&["a.b.c", "b.a", "bc"]);
    for (old, new, why) in [
        ("*.*", "*/*", "mv: \"a.b.c\" matches \"*.*\" in more than one way, so its new name is not certain"),
        ("a*", "encoder", "mv: \"a*\" has 1 *, and the new name \"encoder\" has 0; each stands for the same"),
        ("a*", "'b*'", "mv: \"a*\" has 1 *, and the new name \"'b*'\" has 0"),
        ("a?", "b?", "mv: \"a?\" has '?', which stands for a text that the new name cannot repeat"),
        ("a*[b]", "b*[b]", "mv: \"a*[b]\" has '[', which"),
        ("b.", "encoder", "mv: \"b.\" is a prefix, and stands for all names that begin with it"),
        ("b.", "e*.", "mv: \"b.\" is a prefix"),
        (
            "b",
            "c",
            "mv: no tensor has the name \"b\", but 2 names begin with it, such as b.a: 'b*' selects them",
        ),
    ] {
        let refusal = dir.refusal(&["mv", "s.smap", old, new]);
        assert!(refusal.starts_with(why), "{old} {new}: {refusal}");
    }
    // Two collisions: a new name that exists, and more of them.
    let dir = with(&["a.x", "a.y", "b.x", "b.y"]);
    assert_eq!(
        dir.refusal(&["mv", "s.smap", "a.", "b."]),
        "mv: \"a.x\" would become \"b.x\", which exists, int64 [1], and so does 1 more of the new names; --force replaces \
         them"
    );
    let said = dir.refusal(&["mv", "s.smap", "a.", "c"]);
    assert!(said.ends_with("write the new name as a prefix, too, such as c."), "{said}");
    let said = dir.refusal(&["mv", "s.smap", "a.", "c.*"]);
    assert!(said.ends_with("write the new name as a prefix, too, such as c."), "{said}");
    // The same new name for two tensors.
    let dir = with(&["a-b", "ab-"]);
    assert_eq!(
        dir.refusal(&["mv", "s.smap", "*-*", "**"]),
        "mv: \"a-b\" and \"ab-\" would both become \"ab\""
    );
    let run = dir.run(&["mv", "s.smap", "none.*", "x.*"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), "stridemap: mv: no tensor matches \"none.*\"\n"));
}

#[test]
fn new_name_may_be_the_old_name_of_another() {
    let dir = with(&["a", "aa", "aaa"]);
    dir.messages(&["mv", "s.smap", "a*", "aa*"]);
    assert_eq!(listed(&dir), pairs(&[("aa", 0), ("aaa", 1), ("aaaa", 2)]));
    // Nothing has a new name.
    assert_eq!(dir.messages(&["mv", "s.smap", "a*", "a*"]), "");
    assert_eq!(dir.store().generation(), 3);
}

#[test]
fn attributes_of_tensors_and_prefixes_are_renamed_too() {
    let dir = with(&["bert.a", "bert.b"]);
    dir.messages(&["attr", "set", "s.smap", "unit", "m", "--of", "bert.a"]);
    dir.messages(&["attr", "set", "s.smap", "kind", "text", "--of", "bert."]);
    dir.messages(&["attr", "set", "s.smap", "kind", "other", "--of", "encoder."]);
    assert_eq!(
        dir.refusal(&["mv", "s.smap", "bert.", "encoder."]),
        "mv: the attribute \"kind\" of \"bert.\" would replace that of \"encoder.\", \"other\"; --force replaces it"
    );
    let said = dir.messages(&["mv", "s.smap", "bert.", "encoder.", "--force"]);
    assert!(said.ends_with("bert.a to encoder.a, with 1 attribute of a prefix: generation 6\n"), "{said}");
    assert_eq!(dir.stdout(&["attr", "list", "s.smap"]), "kind\ttext\tencoder.\nunit\tm\tencoder.a\n");
}

#[test]
fn a_name_wins_over_a_glob_and_a_prefix() {
    let dir = with(&["a*", "ab", "m.", "m.x"]);
    dir.messages(&["mv", "s.smap", "a*", "star"]);
    dir.messages(&["mv", "s.smap", "m.", "dot"]);
    assert_eq!(listed(&dir), pairs(&[("ab", 1), ("dot", 2), ("m.x", 3), ("star", 0)]));
}

#[test]
fn word_that_is_not_a_command_gets_a_hint() {
    let dir = Dir::with_store();
    for (args, hint) in [
        (
            &["cp", "s.smap", "points", "x"][..],
            "view saves a tensor under a second name: stridemap view STORE NAME NEW",
        ),
        (
            &["cast", "s.smap", "points"],
            "convert converts tensors of a store: stridemap convert STORE NAME --to DTYPE; export writes ",
        ),
        (&["rename", "s.smap", "points", "x"], "mv renames tensors: stridemap mv STORE NAME NEW"),
        (&["undo", "s.smap"], "restore goes back to a tagged generation, "),
        (&["map", "s.smap"], "du shows which tensors share which bytes: stridemap du --map STORE"),
        (&["remove", "s.smap", "points"], "rm removes tensors: stridemap rm STORE NAME"),
        (
            &["completions", "bash"],
            "generate prints scripts that complete command lines: stridemap generate bash",
        ),
        (&["man", "."], "generate writes man pages: "),
        (&["watch", "s.smap"], "log prints a line for each commit: stridemap log --follow STORE"),
        (&["s.smap", "ls"], "the command comes first: stridemap info s.smap"),
    ] {
        let run = dir.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
        assert!(run.stderr.contains(&format!("tip: {hint}")), "{run:?}");
    }
    assert!(!dir.run(&["rename"]).stderr.contains("prune"));
    // A slip of the fingers is near one command.
    for (typed, meant) in [("impotr", "import"), ("statss", "stats"), ("exprot", "export")] {
        let said = dir.run(&[typed]).stderr;
        assert!(said.contains(&format!("a similar subcommand exists: '{meant}'")), "{said}");
    }
}
