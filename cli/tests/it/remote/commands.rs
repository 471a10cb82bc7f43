//! The commands, with all their options, on a remote in a directory.

use std::fs;

use super::{element, json, messages, save, url, without_dir};
use crate::harness::{Dir, tree};

#[test]
fn push_says_what_it_sent_and_the_next_one_that_nothing_has_changed() {
    let (dir, at) = (Dir::with_store(), "file:///remote/s.smap");
    let url = url(&dir);
    dir.messages(&["tag", "s.smap", "v1"]);
    let said = without_dir(&dir, &dir.stdout(&["push", "s.smap", &url, "-n"]));
    assert!(said.starts_with(&format!("would push generation 3 to {at}: ")), "{said}");
    assert!(!dir.path("remote").exists());
    let said = messages(&dir, &["push", "s.smap", &url]);
    assert!(said.starts_with(&format!("stridemap: pushed s.smap with 1 tag to {at}, ")), "{said}");
    assert!(said.ends_with(" objects: generation 3\n") && said.contains(" changed, "), "{said}");
    let before = tree(&dir.path("remote"));
    for args in [&["push", "s.smap", &url][..], &["push", "s.smap", &url, "--jobs", "1", "--timeout", "5s"]] {
        assert_eq!(messages(&dir, args), format!("stridemap: {at} is up to date: generation 3\n"));
    }
    assert_eq!(
        without_dir(&dir, &dir.stdout(&["push", "s.smap", &url, "-n"])),
        format!("{at} is up to date: generation 3\n")
    );
    assert_eq!(tree(&dir.path("remote")), before);
    let said = dir.run(&["push", "s.smap", &url, "--verbose"]).stderr;
    assert!(said.lines().last().unwrap().starts_with("stridemap: note: 2 requests: 2 GET"), "{said}");
}

#[test]
fn json_of_push_and_pull_has_generations_bytes_and_requests() {
    let dir = Dir::with_store();
    let url = url(&dir);
    let planned = json(&dir, &["push", "s.smap", &url, "-n"]);
    assert_eq!((planned["is_dry_run"].as_bool(), &planned["requests"]["put"]), (Some(true), &0.into()));
    let pushed = json(&dir, &["push", "s.smap", &url]);
    assert_eq!((&pushed["v"], &pushed["generation"]), (&1.into(), &2.into()));
    assert!(pushed["previous"].is_null() && pushed["tags"].as_array().unwrap().is_empty());
    assert_eq!(pushed["changed_bytes"], planned["changed_bytes"]);
    assert!(pushed["sent_bytes"].as_u64() > pushed["changed_bytes"].as_u64());
    assert!(pushed["objects"].as_u64() >= Some(2) && pushed["requests"]["put"].as_u64() >= Some(3));
    assert_eq!(pushed["url"], url);
    let planned = json(&dir, &["pull", &url, "p.smap", "--dry-run"]);
    assert!(!dir.path("p.smap").exists());
    let pulled = json(&dir, &["pull", &url, "p.smap"]);
    assert_eq!((&pulled["generation"], &pulled["is_dry_run"]), (&2.into(), &false.into()));
    assert!(pulled["previous"].is_null() && planned["received_bytes"].as_u64() > Some(0));
    let again = json(&dir, &["pull", &url, "p.smap"]);
    assert_eq!((&again["previous"], &again["received_bytes"]), (&2.into(), &0.into()));
    let copied = json(&dir, &["pull", &url, "c.smap", "points"]);
    assert_eq!((&copied["tensors"], &copied["bytes"]), (&1.into(), &24.into()));
}

#[test]
fn pulled_store_is_the_same_and_a_later_pull_receives_what_has_changed() {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["tag", "s.smap", "v1"]);
    dir.messages(&["push", "s.smap", &url]);
    let said = messages(&dir, &["pull", &url, "p.smap"]);
    assert!(said.starts_with("stridemap: pulled file:///remote/s.smap into p.smap, "), "{said}");
    assert!(said.ends_with(" received: generation 3\n"), "{said}");
    let full = |path: &str| dir.stdout(&["info", "--all", path]).replace(path, "");
    assert_eq!(full("p.smap"), full("s.smap"));
    assert_eq!(dir.stdout(&["log", "p.smap"]), dir.stdout(&["log", "s.smap"]));
    assert_eq!(dir.stdout(&["verify", "p.smap", "-q"]), "ok\n");
    assert_eq!(messages(&dir, &["pull", &url, "p.smap"]), "stridemap: p.smap is up to date: generation 3\n");

    save(&dir.store(), "x", 7);
    dir.messages(&["push", "s.smap", &url]);
    let said = without_dir(&dir, &dir.stdout(&["pull", &url, "p.smap", "-n"]));
    assert!(said.starts_with("would pull generation 4 of file:///remote/s.smap into p.smap: "), "{said}");
    dir.messages(&["pull", &url, "p.smap"]);
    assert_eq!(dir.stdout(&["show", "p.smap", "x"]), dir.stdout(&["show", "s.smap", "x"]));
    // The copy goes on, and the first store pulls from it.
    dir.messages(&["rm", "p.smap", "x"]);
    dir.messages(&["push", "p.smap", &url]);
    dir.messages(&["pull", &url, "s.smap"]);
    assert_eq!(full("p.smap"), full("s.smap"));
}

#[test]
fn pull_of_some_tensors_makes_an_independent_store() {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["push", "s.smap", &url]);
    assert_eq!(
        without_dir(&dir, &dir.stdout(&["pull", &url, "c.smap", "points*", "-n"])),
        "would copy 2 tensors of file:///remote/s.smap into c.smap: 48 B\n"
    );
    let said = messages(&dir, &["pull", &url, "c.smap", "points*", "'odd [name]'"]);
    let local = dir.messages(&["export", "s.smap", "local.smap", "points*", "'odd [name]'"]);
    let bytes = local.split(", ").nth(1).unwrap();
    let expected =
        format!("copied 3 tensors of file:///remote/s.smap, {bytes}, into c.smap, a store of its own");
    assert_eq!(said, format!("stridemap: {expected}\n"));
    assert_eq!(dir.stdout(&["ls", "c.smap"]), dir.stdout(&["ls", "s.smap"]));
    assert_ne!(stridemap::Store::open(dir.path("c.smap")).unwrap().uuid(), dir.store().uuid());
    assert_eq!(dir.run(&["pull", &url, "d.smap", "none*"]).code, Some(1));
    let said = dir.refusal(&["pull", &url, "c.smap", "points"]);
    assert!(
        said.starts_with("pull c.smap: some tensors are copied to a new store, and the path exists"),
        "{said}"
    );
    assert!(dir.refusal(&["pull", &url, "d.smap", "point"]).contains("'point*' selects them"));
}

#[test]
fn prune_of_a_url_deletes_what_neither_the_last_generations_nor_tags_need() {
    let dir = Dir::empty();
    let store = stridemap::Store::create(dir.path("s.smap")).unwrap();
    let url = url(&dir);
    for element in 0..4 {
        save(&store, "x", element);
        if element == 1 {
            store.tag("kept").unwrap();
        }
        dir.messages(&["push", "s.smap", &url]);
    }
    let file_count = || tree(&dir.path("remote")).len();
    let before = file_count();
    let said = messages(&dir, &["prune", &url]);
    assert_eq!(said, "stridemap: nothing to prune at file:///remote/s.smap, which keeps 4 generations\n");
    // Within 24 hours nothing is deleted.
    let run = dir.run(&["prune", &url, "--keep-last", "1"]);
    assert!(run.stderr.contains("are not needed, and kept until the grace period is over"), "{run:?}");
    assert_eq!((run.code, file_count()), (Some(0), before));
    let args = ["prune", &url, "--keep-last", "1", "--grace", "0"];
    let planned = dir.stdout(&[&args[..], &["-n"]].concat());
    assert!(
        planned.starts_with("would delete ") && planned.ends_with(", and keep 1 generation\n"),
        "{planned}"
    );
    assert_eq!(file_count(), before);
    let pruned = json(&dir, &args);
    let deleted = pruned["objects"].as_u64().unwrap();
    assert!(
        deleted >= 3 && pruned["generations"] == 1 && pruned["requests"]["delete"].as_u64() > Some(deleted)
    );
    assert_eq!(file_count() as u64, before as u64 - deleted);
    // What an unfinished push left.
    fs::write(dir.path("remote/s.smap/objects").join("ab".repeat(32)), "x").unwrap();
    assert!(messages(&dir, &args).contains("nothing to prune"));
    assert!(
        messages(&dir, &[&args[..], &["--orphans"]].concat()).starts_with("stridemap: deleted 1 object of ")
    );
    assert_eq!(dir.stdout(&["verify", &url]), "ok\n");
    dir.messages(&["pull", &url, "p.smap"]);
    let pulled = stridemap::Store::open(dir.path("p.smap")).unwrap();
    assert_eq!(element(&pulled, "x"), 3);
    assert_eq!(pulled.at("kept").unwrap().load("x").unwrap().read::<i64>().unwrap(), [1]);
}
