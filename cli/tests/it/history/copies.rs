//! Copies of a store with its tags.

use super::{lines, with_tags};

#[test]
fn copy_with_tags_is_a_store_with_the_same_log() {
    let dir = with_tags();
    let dry = dir.stdout(&["export", "s.smap", "copy.smap", "--tags", "-n"]);
    assert_eq!(dry, "would write copy.smap, a copy of the store: 1 tensor and 2 tags\n");
    assert!(!dir.path("copy.smap").exists());
    let said = dir.messages(&["export", "s.smap", "copy.smap", "--tags"]);
    let expected = "stridemap: exported 1 tensor and 2 tags, 29.30 KiB, to copy.smap";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(lines(&dir, &["log", "copy.smap"]), lines(&dir, &["log", "s.smap"]));
    assert_eq!(dir.stdout(&["verify", "copy.smap"]), "ok\n");
    for tag in ["v1", "v2"] {
        let (copy, original) = (format!("copy.smap@{tag}"), format!("s.smap@{tag}"));
        assert!(dir.stdout(&["diff", &copy, &original]).starts_with("equal: "), "{tag}");
    }
    dir.messages(&["restore", "copy.smap", "v1"]);
    assert_eq!(dir.stdout(&["ls", "copy.smap"]), "a\nb\n");
    // One tag.
    dir.messages(&["tag", "s.smap", "-d", "v1"]);
    let said = dir.messages(&["export", "s.smap", "one.smap", "--tags"]);
    assert!(said.starts_with("stridemap: exported 1 tensor and 1 tag, "), "{said}");
}

#[test]
fn copy_with_tags_is_refused_for_a_part_of_a_store() {
    let dir = with_tags();
    for (args, why) in [
        (&["s.smap@v1", "x.smap"][..], "name the store, s.smap, without @v1"),
        (
            &["s.smap", "x.smap", "c"],
            "--tags copies whole generations; leave out the names, or leave out --tags",
        ),
        (&["s.smap", "x.npz"], "--tags is for a copy of the store; name it COPY.smap"),
        (&["s.smap", "-"], "--tags is for a copy of the store; name it COPY.smap"),
        (&["s.smap", "x.smap", "--prefix", "c"], "--prefix is for files in other formats"),
        (&["s.smap", "s.smap"], "the path exists, and a store is never replaced"),
    ] {
        let refusal = dir.refusal(&[&["export"], args, &["--tags"]].concat());
        assert!(refusal.contains(why), "{args:?}: {refusal}");
    }
    assert!(!dir.path("x.smap").exists());
}
