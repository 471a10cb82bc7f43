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

/// What can be done, with the commands.
fn ways_out_of(store: &str, url: &str) -> String {
    format!(
        "to keep the state of this store, push it to another URL (stridemap push {store} NEW-URL); to keep that of the \
         remote, pull to a new path (stridemap pull '{url}' NEW.smap), or move this store away and pull again (mv {store} \
         OLD.smap && stridemap pull '{url}' {store})"
    )
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
        let ways_out = "this store has commits of its own since generation 2, its generation 3, and the remote, at \
                        generation 3, has others; ";
        assert_eq!(failure(&run), format!("push s.smap to {url}: {ways_out}{}", ways_out_of("s.smap", &url)));
    }
    assert_eq!((tree(&dir.path("remote")), dir.stdout(&["ls", "-l", "s.smap"])), before);
    assert_eq!(dir.stdout(&["show", &url, "x"]), "tensor([2])\n");
    // Pull and follow say the same.
    for args in
        [&["pull", &url, "s.smap"][..], &["pull", &url, "s.smap", "-n"], &["follow", &url, "s.smap", "-q"]]
    {
        let run = dir.run(args);
        let said = failure(&run);
        assert!(
            said.starts_with(&format!("pull {url} to s.smap: this store has commits of its own ")),
            "{said}"
        );
        assert!(said.ends_with(&format!("has others; {}", ways_out_of("s.smap", &url))), "{said}");
    }
    // As the message says: at another URL, at a new path, or in place of this store.
    let other = format!("{url}-other");
    dir.messages(&["push", "s.smap", &other]);
    assert_eq!(dir.stdout(&["show", &other, "x"]), "tensor([1])\n");
    std::fs::rename(dir.path("s.smap"), dir.path("OLD.smap")).unwrap();
    dir.messages(&["pull", &url, "s.smap"]);
    assert_eq!(
        (element(&dir.store(), "x"), element(&Store::open(dir.path("OLD.smap")).unwrap(), "x")),
        (2, 1)
    );
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
        assert!(
            said.contains("this store has commits of its own since generation 2, its generation 3, "),
            "{said}"
        );
    }
    assert_eq!((element(&pulled, "own"), pulled.latest().unwrap().contains("x").unwrap()), (2, false));
}

#[test]
fn store_with_commits_that_a_remote_lacks_is_told_to_push_them_and_one_that_is_behind_to_pull() {
    let (dir, url) = two_stores();
    save(&Store::open(dir.path("p.smap")).unwrap(), "x", 1);
    save(&Store::open(dir.path("p.smap")).unwrap(), "x", 2);
    let run = dir.run(&["pull", &url, "p.smap"]);
    let why = "the store has commits of its own since its last push or pull, its generations 3 to 4, and the remote has \
               nothing newer; push it";
    assert_eq!(failure(&run), format!("pull {url} to p.smap: {why} (stridemap push p.smap '{url}')"));
    dir.messages(&["push", "p.smap", &url]);
    let run = dir.run(&["push", "s.smap", &url]);
    let why = "the remote has generation 4, and this store, at generation 2, has nothing newer; pull";
    assert_eq!(failure(&run), format!("push s.smap to {url}: {why} (stridemap pull '{url}' s.smap)"));
    dir.messages(&["pull", &url, "s.smap"]);
    assert_eq!(element(&dir.store(), "x"), 2);
}

#[test]
fn remote_that_was_put_back_is_neither_pushed_over_nor_pulled() {
    let (dir, url) = two_stores();
    let old = dir.path("old");
    let copied = std::process::Command::new("cp").arg("-r").args([dir.path("remote"), old.clone()]).status();
    assert!(copied.unwrap().success());
    save(&dir.store(), "x", 1);
    dir.messages(&["push", "s.smap", &url]);
    std::fs::remove_dir_all(dir.path("remote")).unwrap();
    std::fs::rename(&old, dir.path("remote")).unwrap();
    for args in [&["push", "s.smap", &url][..], &["pull", &url, "s.smap"]] {
        let run = dir.run(args);
        let why =
            "the remote has generation 2, which does not follow generation 3, the last one that both had; ";
        assert!(failure(&run).ends_with(&format!("{why}{}", ways_out_of("s.smap", &url))), "{run:?}");
    }
}

#[test]
fn restore_says_that_it_keeps_a_store_from_being_pulled() {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["tag", "s.smap", "v1"]);
    save(&dir.store(), "x", 1);
    assert!(!dir.run(&["restore", "s.smap", "v1", "-n"]).stderr.contains("pull"));
    dir.messages(&["push", "s.smap", &url]);
    dir.messages(&["pull", &url, "p.smap"]);
    let note = format!(
        "stridemap: note: with this commit of its own, the store can be pulled from {url} only after stridemap push p.smap \
         '{url}'\n"
    );
    for args in [&["restore", "p.smap", "v1", "--force", "-n"][..], &["restore", "p.smap", "v1", "--force"]] {
        let run = dir.run(args);
        assert!(run.code == Some(0) && run.stderr.ends_with(&note), "{run:?}");
    }
    assert!(failure(&dir.run(&["pull", &url, "p.smap"])).contains("commits of its own"));
    dir.messages(&["push", "p.smap", &url]);
    dir.messages(&["pull", &url, "p.smap"]);
}

#[test]
fn another_store_is_neither_pushed_over_a_remote_nor_pulled_over() {
    let (dir, url) = two_stores();
    let other = Store::create(dir.path("other.smap")).unwrap();
    save(&other, "x", 1);
    let run = dir.run(&["push", "other.smap", &url]);
    assert!(failure(&run).contains("the remote has a different store; push this one to another URL (stridemap push other.smap NEW-URL)"), "{run:?}");
    let run = dir.run(&["pull", &url, "other.smap"]);
    assert!(
        failure(&run).contains("the path has a different store; choose a path at which nothing is"),
        "{run:?}"
    );
    assert_eq!(element(&other, "x"), 1);
}

#[test]
fn damaged_remote_is_published_again_at_its_url_and_replicas_of_the_generation_go_on() {
    let (dir, url) = two_stores();
    dir.messages(&["pull", &url, "behind.smap"]);
    save(&dir.store(), "x", 1);
    dir.messages(&["push", "s.smap", &url]);
    dir.messages(&["pull", &url, "p.smap"]);
    let objects = std::fs::read_dir(dir.path("remote/s.smap/objects")).unwrap();
    objects.for_each(|object| std::fs::remove_file(object.unwrap().path()).unwrap());
    assert_eq!(dir.run(&["verify", &url]).code, Some(1));
    // A push finds nothing new to send.
    dir.messages(&["push", "s.smap", &url]);
    assert_eq!(dir.run(&["verify", &url]).code, Some(1));
    // As the guide says.
    std::fs::remove_dir_all(dir.path("remote")).unwrap();
    dir.messages(&["push", "p.smap", &url]);
    assert_eq!(dir.stdout(&["verify", &url]), "ok\n");
    dir.messages(&["pull", &url, "s.smap"]);
    let run = dir.run(&["pull", &url, "behind.smap"]);
    assert!(
        failure(&run).contains("which does not follow generation 2, the last one that both had"),
        "{run:?}"
    );
    save(&dir.store(), "x", 2);
    dir.messages(&["push", "s.smap", &url]);
    dir.messages(&["pull", &url, "p.smap"]);
    assert_eq!(element(&Store::open(dir.path("p.smap")).unwrap(), "x"), 2);
}
