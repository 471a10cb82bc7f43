//! Going back to a tagged generation.

use super::with_tags;

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
    let refusal = dir.refusal(&["restore", "s.smap", "v1", "x"]);
    assert_eq!(refusal, "restore \"x\" from generation 3: no name begins with this");
}
