//! Stores that have gone different ways.

use stridemap::Store;

use super::{element, failure, save, url};
use crate::harness::{Dir, tree};

/// Makes a store, pushes it, and pulls it to `p.smap`.
fn two_stores() -> (Dir, String) {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["push", "s.smap", &url]);
    dir.messages(&["pull", &url, "p.smap"]);
    (dir, url)
}

#[test]
fn of_two_stores_that_push_the_first_wins_and_the_other_is_told_what_to_do() {
    let (dir, url) = two_stores();
    save(&dir.store(), "x", 1);
    save(&Store::open(dir.path("p.smap")).unwrap(), "x", 2);
    dir.messages(&["push", "p.smap", &url]);
    let before = (tree(&dir.path("remote")), dir.stdout(&["ls", "-l", "s.smap"]));
    for args in
        [&["push", "s.smap", &url][..], &["push", "s.smap", &url, "-n"], &["push", "s.smap", &url, "--json"]]
    {
        let run = dir.run(args);
        let said = failure(&run);
        assert!(
            said.contains("pull it to a new path and make the changes there, or push to a new URL"),
            "{said}"
        );
    }
    assert_eq!((tree(&dir.path("remote")), dir.stdout(&["ls", "-l", "s.smap"])), before);
    assert_eq!(dir.stdout(&["show", &url, "x"]), "tensor([2])\n");
    // As the message says.
    dir.messages(&["pull", &url, "new.smap"]);
    let new = Store::open(dir.path("new.smap")).unwrap();
    save(&new, "x", 1);
    dir.messages(&["push", "new.smap", &url]);
    assert_eq!(dir.stdout(&["show", &url, "x"]), "tensor([1])\n");
}

#[test]
fn pull_into_a_store_with_commits_of_its_own_is_refused_and_changes_nothing() {
    let (dir, url) = two_stores();
    save(&dir.store(), "x", 1);
    dir.messages(&["push", "s.smap", &url]);
    let pulled = Store::open(dir.path("p.smap")).unwrap();
    save(&pulled, "own", 2);
    for args in
        [&["pull", &url, "p.smap"][..], &["pull", &url, "p.smap", "-n"], &["follow", &url, "p.smap", "-q"]]
    {
        let run = dir.run(args);
        let said = failure(&run);
        assert!(said.contains("the store has commits of its own since its last push or pull"), "{said}");
    }
    assert_eq!((element(&pulled, "own"), pulled.latest().unwrap().contains("x").unwrap()), (2, false));
}

#[test]
fn another_store_is_neither_pushed_over_a_remote_nor_pulled_over() {
    let (dir, url) = two_stores();
    let other = Store::create(dir.path("other.smap")).unwrap();
    save(&other, "x", 1);
    let run = dir.run(&["push", "other.smap", &url]);
    assert!(failure(&run).contains("the remote has a different store; push to a new URL"), "{run:?}");
    let run = dir.run(&["pull", &url, "other.smap"]);
    assert!(
        failure(&run).contains("the path has a different store; choose a path at which nothing is"),
        "{run:?}"
    );
    assert_eq!(element(&other, "x"), 1);
}
