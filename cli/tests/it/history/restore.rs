//! Going back to a tagged generation.

use stridemap::DType;

use super::{bytes, with_tags};
use crate::harness::Dir;

#[test]
fn restore_brings_back_all_or_a_prefix() {
    let dir = with_tags();
    assert_eq!(
        dir.stdout(&["restore", "s.smap", "v1", "-n"]),
        "+ a\tuint8 [10000]\n+ b\tuint8 [10000]\n- c\tuint8 [1]\n@ step\n\
         would restore v1, generation 3: 2 added, 1 removed, 1 of the attributes\nv2 keeps it; to get it back: \
         stridemap restore s.smap v2 c\n"
    );
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "c\n");
    assert_eq!(
        dir.messages(&["restore", "s.smap", "v1", "b"]),
        "stridemap: restored b of v1, generation 3: 1 added: generation 7\n"
    );
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "b\nc\n");
    assert_eq!(
        dir.messages(&["restore", "s.smap", "v1", "--tag", "before"]),
        "stridemap: restored v1, generation 3: 1 added, 1 removed, 1 of the attributes, with generation 7 tagged before: \
         generation 8\nstridemap: note: before keeps it; to get it back: stridemap restore s.smap before c\n"
    );
    assert_eq!(dir.stdout(&["diff", "s.smap", "s.smap@v1"]), "equal: 2 tensors, 19.53 KiB\n");
    assert_eq!(
        dir.messages(&["restore", "s.smap", "v1"]),
        "stridemap: nothing to restore: the store has v1, generation 3 already\n"
    );
    assert_eq!(dir.stdout(&["ls", "s.smap@before"]), "b\nc\n");
    assert_eq!(dir.run(&["verify", "s.smap"]).stdout, "ok\n");
    let run = dir.run(&["restore", "s.smap", "v1", "x"]);
    assert_eq!(run.code, Some(1));
    assert_eq!(
        run.stderr,
        "stridemap: restore: no name of v1 begins with \"x\"; stridemap ls s.smap@v1 lists the names\n"
    );
}

#[test]
fn tensor_that_a_restore_renames_back_is_not_lost() {
    let dir = with_tags();
    dir.messages(&["restore", "s.smap", "v1"]);
    dir.messages(&["mv", "s.smap", "a", "x"]);
    assert_eq!(
        dir.stdout(&["restore", "s.smap", "v1", "-n"]),
        "+ a\tuint8 [10000]\n- x\tuint8 [10000]\nwould restore v1, generation 3: 1 added, 1 removed\n"
    );
    let said = dir.messages(&["restore", "s.smap", "v1"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    // Of another prefix, it does not come back, so the note says where it is.
    dir.messages(&["mv", "s.smap", "a", "x"]);
    let said = dir.messages(&["rm", "s.smap", "x"]);
    assert!(said.contains("to get it back: stridemap restore s.smap v1 a"), "{said}");
}

#[test]
fn restore_refuses_to_lose_what_no_tag_keeps() {
    let dir = with_tags();
    let store = dir.store();
    store
        .write(|txn| ["b", "d", "e.1", "e.2", "f"].iter().try_for_each(|name| txn.save(name, &bytes(9))))
        .unwrap();
    drop(store);
    let refusal = "restore v1: no tag keeps the present state of b, d, e.1 and 2 more tensors; --tag NAME tags it in the \
                   same commit, --force lets it be lost";
    assert_eq!(dir.refusal(&["restore", "s.smap", "v1"]), refusal);
    let run = dir.run(&["restore", "s.smap", "v1", "-n"]);
    assert_eq!((run.code, run.stderr), (Some(2), format!("stridemap: {refusal}\n")));
    assert!(run.stdout.starts_with("+ a\tuint8 [10000]\n~ b\t") && !run.stdout.contains("would restore"));
    assert!(dir.refusal(&["restore", "s.smap", "v1", "b"]).contains("no tag keeps the present state of b;"));

    // What a tag or another name keeps does not count, nor does what is only added.
    assert_eq!(dir.run(&["restore", "s.smap", "v1", "a"]).code, Some(0));
    dir.messages(&["view", "s.smap", "a", "b.copy"]);
    dir.messages(&["mv", "s.smap", "b", "g"]);
    assert_eq!(dir.run(&["restore", "s.smap", "v1", "b"]).code, Some(0));
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "a\nb\nc\nd\ne.1\ne.2\nf\ng\n");

    let said = dir.stdout(&["restore", "s.smap", "v1", "-n", "--tag", "before"]);
    assert!(said.contains("\n- g\t") && said.contains("before would keep"), "{said}");
    assert!(dir.stdout(&["restore", "s.smap", "v1", "-n", "--force"]).contains("would restore v1"));
    assert!(dir.messages(&["restore", "s.smap", "v1", "--tag", "before"]).contains("tagged before"));
    dir.messages(&["restore", "s.smap", "before"]);
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "a\nb\nc\nd\ne.1\ne.2\nf\ng\n");
    dir.messages(&["tag", "-d", "s.smap", "before"]);
    let said = dir.messages(&["restore", "s.smap", "v1", "--force"]);
    assert!(said.contains("v2 keeps 1 of 6 tensors; to get that one back: "), "{said}");
    assert_eq!(dir.stdout(&["ls", "s.smap"]), "a\nb\n");
}

#[test]
fn rows_that_were_appended_since_the_tag_are_not_lost_without_asking() {
    let dir = Dir::with_store();
    dir.store().create_growable("log", DType::U8, &[1], 9).unwrap();
    dir.write_npy("row.npy", "|u1", "(1,)", &[9]);
    dir.messages(&["append", "s.smap", "log", "row.npy"]);
    dir.messages(&["tag", "s.smap", "v1"]);
    dir.messages(&["append", "s.smap", "log", "row.npy"]);
    let refusal = dir.refusal(&["restore", "s.smap", "v1"]);
    assert!(refusal.contains("no tag keeps the present state of log; "), "{refusal}");
    // These elements are also those of the tagged tensor.
    dir.messages(&["restore", "s.smap", "v1", "--force"]);
    dir.messages(&["view", "s.smap", "log[:1]", "log", "--force"]);
    assert!(dir.messages(&["restore", "s.smap", "v1"]).contains("1 changed"));
}
