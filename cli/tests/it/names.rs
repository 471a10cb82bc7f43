//! The `view`, `ln`, `mv` and `rm` commands.

use crate::harness::Dir;

fn listed(dir: &Dir) -> Vec<String> {
    dir.store().names().unwrap()
}

#[test]
fn view_saves_a_header_over_the_same_storage() {
    let dir = Dir::with_store();
    assert_eq!(dir.messages(&["view", "s.smap", "points[-1]", "last"]), "");
    let (store, last) = (dir.store(), dir.store().load("last").unwrap());
    assert_eq!((last.size(), last.stride(), last.storage_offset()), (&[2][..], &[1][..], 4));
    assert!(last.shares_storage(&store.load("points").unwrap()));
}

#[test]
fn new_name_is_used_literally() {
    let dir = Dir::with_store();
    dir.messages(&["view", "s.smap", "points", "'quoted'[0]"]);
    dir.messages(&["mv", "s.smap", "odd [name]", "x.t()"]);
    assert_eq!(listed(&dir), ["'quoted'[0]", "points", "points_t", "x.t()"]);
}

#[test]
fn view_with_its_arguments_swapped_is_refused_with_their_order() {
    let dir = Dir::with_store();
    for (args, start) in [
        (["new", "points[0]"], "load \"new\": no tensor with this name"),
        (["new", "points"], "load \"new\": no tensor with this name"),
        (["points_t", "points.t()"], "view: the new name \"points.t()\" is an expression"),
    ] {
        let refusal = dir.refusal(&["view", "s.smap", args[0], args[1]]);
        assert!(refusal.starts_with(start), "{refusal}");
        assert!(refusal.ends_with("; the order is: stridemap view STORE EXPR NEW"), "{refusal}");
    }
    dir.messages(&["view", "s.smap", "points", "'points.t()'"]);
    assert!(listed(&dir).contains(&"points.t()".to_owned()));
}

#[test]
fn cp_adds_a_second_name_for_the_same_header() {
    let dir = Dir::with_store();
    assert_eq!(dir.messages(&["ln", "s.smap", "points_t", "twin"]), "");
    let (twin, original) = (dir.store().load("twin").unwrap(), dir.store().load("points_t").unwrap());
    assert_eq!((twin.size(), twin.stride()), (original.size(), original.stride()));
    assert!(twin.shares_storage(&original));
}

#[test]
fn mv_replaces_with_force() {
    let dir = Dir::with_store();
    assert_eq!(dir.messages(&["mv", "s.smap", "points_t", "points", "--force"]), "");
    assert_eq!(listed(&dir), ["odd [name]", "points"]);
    assert_eq!(dir.store().load("points").unwrap().size(), [2, 3]);
}

#[test]
fn rm_removes_all_names_in_one_commit() {
    let dir = Dir::with_store();
    assert_eq!(dir.messages(&["rm", "s.smap", "points", "odd [name]"]), "");
    assert_eq!(listed(&dir), ["points_t"]);
    assert_eq!(dir.store().generation(), 3);
}

#[test]
fn mv_to_the_same_name_commits_nothing() {
    let dir = Dir::with_store();
    let before = dir.store().generation();
    dir.stdout(&["mv", "s.smap", "points", "points"]);
    dir.stdout(&["mv", "s.smap", "points", "points", "--no-clobber", "--force"]);
    assert_eq!(dir.store().generation(), before);
    assert!(dir.refusal(&["mv", "s.smap", "none", "none"]).contains("no tensor with this name"));
}
