//! The methods of a store and a transaction, and what they refuse.

use std::process::Command;
use std::time::{Duration, SystemTime};

use stridemap::history::{At, Retention};
use stridemap::{ErrorKind, OnExisting, Store, StoreOptions};

use super::{first_of, save_tagged, tag_names};
use crate::harness::{assert_refused, fast, filled, new_fast_store, new_path, new_store};

#[test]
fn tag_with_its_commit_names_the_generation_that_it_publishes() {
    let (_dir, _, store) = new_store();
    let before = SystemTime::now();
    store
        .write(|txn| {
            txn.save("x", &filled(3, 1i64))?;
            txn.message("the first");
            txn.tag("v1")?;
            txn.tag("v0")
        })
        .unwrap();
    let tags = store.tags().unwrap();
    assert_eq!(tags.iter().map(|tag| &tag.name[..]).collect::<Vec<_>>(), ["v0", "v1"]);
    for tag in &tags {
        assert_eq!((tag.generation, tag.message.as_deref()), (2, Some("the first")));
        // The clock may be set back a little.
        let second = Duration::from_secs(1);
        assert!(tag.time + second >= before && tag.time <= SystemTime::now() + second, "{tag:?}");
    }
    assert_eq!(store.generation(), 2);
    let snapshot = store.at("v1").unwrap();
    assert_eq!((snapshot.time(), snapshot.message()), (tags[0].time, Some("the first")));
    // A later commit without a message has none.
    store.save("x", &filled(3, 2i64)).unwrap();
    assert_eq!(store.snapshot().message(), None);
    assert_eq!((first_of(&store, "v0", "x"), first_of(&store, "v1", "x")), (1, 1));
}

#[test]
fn commit_that_fails_makes_no_tag() {
    let (_dir, _, store) = new_fast_store();
    store.save("x", &filled(1, 1i64)).unwrap();
    let mut txn = store.begin().unwrap();
    let read = txn.load("x").unwrap();
    txn.save("y", &read).unwrap();
    txn.tag("v1").unwrap();
    store.save("x", &filled(1, 2i64)).unwrap();
    assert_refused(txn.commit(), ErrorKind::Conflict, &["\"x\""]);
    let mut dropped = store.begin().unwrap();
    dropped.tag("v2").unwrap();
    drop(dropped);
    assert!(store.tags().unwrap().is_empty());
    assert_refused(store.at("v1"), ErrorKind::NameNotFound, &["open tag \"v1\": no tag with this name"]);
}

#[test]
fn previous_generation_is_that_of_the_last_other_writer() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(1000, 1i64), "v1");
    let other = Store::open(&path).unwrap();
    let mut txn = store.begin().unwrap();
    txn.save("x", &filled(1000, 3i64)).unwrap();
    assert_refused(txn.tag_previous("v1"), ErrorKind::NameExists, &["the tag exists"]);
    txn.tag_previous("before").unwrap();
    txn.message("of the new generation");
    other.save("x", &filled(1000, 2i64)).unwrap();
    let published = txn.commit().unwrap();
    let tags = store.tags().unwrap();
    assert_eq!((tags[1].generation, &tags[1].message), (published - 1, &None));
    drop(other);
    store.gc().unwrap();
    assert_eq!((first_of(&store, "v1", "x"), first_of(&store, "before", "x")), (1, 2));
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn message_of_a_tag_is_not_one_of_the_generation_that_its_commit_makes() {
    let (_dir, _, store) = new_store();
    store.save("x", &1i64).unwrap();
    let tag = |name: &str, message: &str| {
        store.write(|txn| {
            txn.message(message);
            txn.tag_snapshot(name, &store.snapshot())
        })
    };
    tag("v1", "the first").unwrap();
    assert_eq!(store.snapshot().message(), None);
    store.tag("v2").unwrap();
    tag("v3", "the third").unwrap();
    let tags = store.tags().unwrap();
    let messages: Vec<_> =
        tags.iter().map(|tag| (tag.name.as_str(), tag.generation, tag.message.as_deref())).collect();
    assert_eq!(messages, [("v1", 2, Some("the first")), ("v2", 3, None), ("v3", 4, Some("the third"))]);
    // One that also changes something is of the new generation too.
    store
        .write(|txn| {
            txn.message("both");
            txn.save("y", &1i64)?;
            txn.tag_snapshot("v4", &store.snapshot())
        })
        .unwrap();
    assert_eq!(store.snapshot().message(), Some("both"));
}

#[test]
fn held_generation_can_be_tagged_and_stays_when_its_holder_goes() {
    let (_dir, path, store) = new_store();
    store.save("x", &filled(1000, 1i64)).unwrap();
    let reader = Store::open(&path).unwrap();
    store.save("x", &filled(1000, 2i64)).unwrap();
    store.save("x", &filled(1000, 3i64)).unwrap();
    let snapshot = reader.snapshot();
    store
        .write(|txn| {
            txn.save("x", &filled(1000, 4i64))?;
            txn.message("made later");
            txn.tag_snapshot("held", &snapshot)
        })
        .unwrap();
    drop((reader, snapshot));
    store.gc().unwrap();
    let tags = store.tags().unwrap();
    assert_eq!((tags[0].generation, tags[0].message.as_deref()), (2, Some("made later")));
    for other in [store.clone(), Store::open(&path).unwrap()] {
        assert_eq!(first_of(&other, "held", "x"), 1);
        assert_eq!(other.at(2).unwrap().load("x").unwrap().read::<i64>().unwrap()[0], 1);
        assert_refused(other.at(3), ErrorKind::Conflict, &["generation 3 of", "no tag, handle or snapshot"]);
    }
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn tag_that_exists_is_refused_unless_replaced() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(1000, 1i64), "v1");
    store.save("x", &filled(1000, 2i64)).unwrap();
    let refused = store.tag("v1").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NameExists);
    assert_eq!(
        refused.to_string(),
        "tag \"v1\": the tag exists, and names generation 2; choose a different name, remove that tag first, or \
         replace it, with Transaction::on_existing"
    );
    store
        .write(|txn| {
            txn.on_existing(OnExisting::Replace);
            txn.save("x", &filled(1000, 3i64))?;
            txn.tag("v1")
        })
        .unwrap();
    assert_eq!((first_of(&store, "v1", "x"), store.tags().unwrap()[0].generation), (3, 4));
    store.gc().unwrap();
    assert_refused(store.at(2), ErrorKind::Conflict, &["it is not on disk"]);
    assert_eq!(super::files(&path, "storages", "bin").len(), 1, "the replaced tag keeps nothing");
    // Within one transaction, too.
    let mut txn = store.begin().unwrap();
    txn.tag("v2").unwrap();
    assert_refused(txn.tag("v2"), ErrorKind::NameExists, &["tag \"v2\"", "names generation 5"]);
    txn.untag("v2").unwrap();
    assert_refused(txn.untag("v2"), ErrorKind::NameNotFound, &["remove \"v2\": no tag with this name"]);
    txn.tag("v2").unwrap();
    txn.commit().unwrap();
    assert_eq!(tag_names(&store), ["v1", "v2"]);
}

#[test]
fn removed_tag_keeps_nothing() {
    let (_dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(1000, 1i64), "v1");
    store.tag("same").unwrap();
    store.remove("x").unwrap();
    assert_refused(store.untag("v2"), ErrorKind::NameNotFound, &["remove \"v2\": no tag with this name"]);
    store.untag("v1").unwrap();
    store.gc().unwrap();
    assert_eq!(first_of(&store, "same", "x"), 1, "a different tag keeps the generation");
    store.untag("same").unwrap();
    store.gc().unwrap();
    assert!(super::files(&path, "storages", "bin").is_empty());
    assert!(super::files(&path, "generations", "man").is_empty());
    assert!(store.tags().unwrap().is_empty() && store.log().unwrap().len() == 1);
    store.save("y", &filled(1, 1i64)).unwrap();
    assert!(store.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn invalid_names_and_messages_are_refused() {
    let (_dir, _, store) = new_fast_store();
    let long = "n".repeat(4097);
    for name in ["", "a\0b", &long] {
        assert_refused(store.tag(name), ErrorKind::InvalidArgument, &["tag"]);
        assert_refused(store.at(name), ErrorKind::NameNotFound, &["no tag with this name"]);
    }
    for message in ["a\0b", &long] {
        let said = store.write(|txn| {
            txn.message(message);
            txn.save("x", &filled(1, 1i64))
        });
        assert_refused(said, ErrorKind::InvalidArgument, &["message"]);
    }
    assert_eq!(store.generation(), 1);
    let odd = ["..", "meta/0000000000000002.man", "a b\n", "\u{202e}txet", "λ/权重", &long[1..]];
    for name in odd {
        store.tag(name).unwrap();
    }
    store
        .write(|txn| {
            txn.message("");
            txn.save("x", &filled(1, 1i64))
        })
        .unwrap();
    assert_eq!(store.snapshot().message(), None);
    assert_eq!(tag_names(&store).len(), odd.len());
    assert!(odd.iter().all(|name| store.at(*name).is_ok()));
}

#[test]
fn snapshots_of_other_stores_are_refused() {
    let (_dir, path, store) = new_fast_store();
    let (_other_dir, other_path, other) = new_fast_store();
    other.save("x", &filled(1, 1i64)).unwrap();
    let foreign = other.snapshot();
    let (own, theirs) = (path.display(), other_path.display());
    let expected = |what: &str| {
        format!(
            "{what}: the snapshot is of {theirs}, and this transaction changes {own}; take the snapshot from the store \
             that is changed"
        )
    };
    let refused = store.write(|txn| txn.tag_snapshot("t", &foreign)).unwrap_err();
    assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::InvalidArgument, expected("tag \"t\"")));
    let refused = store.restore(&foreign).unwrap_err();
    assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::InvalidArgument, expected("restore")));
    assert_eq!(store.generation(), 1);
}

#[test]
fn snapshots_of_a_copy_of_the_directory_are_refused() {
    let (dir, path, store) = new_fast_store();
    save_tagged(&store, "x", &filled(10, 1i64), "v1");
    let copy = dir.path().join("copy");
    assert!(Command::new("cp").arg("-r").args([&path, &copy]).status().unwrap().success());
    let copied = Store::open(&copy).unwrap();
    // Each has a storage with the same id, and different bytes.
    store.save("y", &filled(10, 2i64)).unwrap();
    copied.save("z", &filled(20, 3i64)).unwrap();
    let words = ["the snapshot is of", "a copy with the same uuid", copy.to_str().unwrap()];
    assert_refused(store.restore(&copied.snapshot()), ErrorKind::InvalidArgument, &words);
    let tagged = store.write(|txn| txn.tag_snapshot("t", &copied.snapshot()));
    assert_refused(tagged, ErrorKind::InvalidArgument, &words);
    // What both have had since before the copy is the same. It must be kept in this store, whatever is held in the copy.
    let shared = copied.at("v1").unwrap();
    let mut txn = store.begin().unwrap();
    txn.restore(&shared, "").unwrap();
    let another = Store::open(&path).unwrap();
    another.untag("v1").unwrap();
    another.save("x", &filled(1, 4i64)).unwrap();
    another.gc().unwrap();
    txn.commit().unwrap();
    assert_eq!(store.load("x").unwrap().read::<i64>().unwrap(), [1; 10]);
    assert!(store.verify(|_| ()).unwrap().is_whole());
    store.tag("v1").unwrap();
    store.save("y", &filled(10, 2i64)).unwrap();
    // A second handle is of the same store, and so is the one at a tag.
    let again = StoreOptions::new().at("v1").open(&path).unwrap();
    store.restore(&again.snapshot()).unwrap();
    assert_eq!(store.names().unwrap(), ["x"]);
}

#[test]
fn generation_is_found_by_tag_or_number() {
    let (_dir, path, store) = new_fast_store();
    save_tagged(&store, "x", &filled(1, 1i64), "3");
    store.save("x", &filled(1, 2i64)).unwrap();
    assert_eq!((store.at("3").unwrap().generation(), store.at(3).unwrap().generation()), (2, 3));
    assert_eq!(store.at(At::Tag("3".to_owned())).unwrap().generation(), 2);
    for number in [0, 1, 4, u64::MAX] {
        let refused = store.at(number).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert_eq!(
            refused.to_string(),
            format!(
                "open generation {number} of {}: it is not on disk, because no tag, handle or snapshot keeps it; the \
                 newest is generation 3",
                path.display()
            )
        );
    }
}

#[test]
fn log_lists_what_is_kept_and_which_bytes_each_alone_has() {
    let (_dir, _, store) = new_fast_store();
    store
        .write(|txn| {
            txn.message("two tensors");
            txn.save("x", &filled(10_000, 1u8))?;
            txn.tag("b")
        })
        .unwrap();
    store.tag("a").unwrap();
    store
        .write(|txn| {
            txn.save("y", &filled(30_000, 1u8))?;
            txn.tag("c")
        })
        .unwrap();
    // The newest generation is a tagged one.
    let own: Vec<_> = store.log().unwrap().iter().map(|entry| (entry.generation, entry.own_bytes)).collect();
    assert_eq!(own, [(4, 30_000), (2, 0)]);
    store.save("x", &filled(5_000, 2u8)).unwrap();
    store.save("y", &filled(70_000, 2u8)).unwrap();
    let log = store.log().unwrap();
    let listed: Vec<_> =
        log.iter().map(|entry| (entry.generation, entry.tags.join(" "), entry.own_bytes)).collect();
    // Generation 2, b and a, has x, which c has too.
    assert_eq!(listed, [(6, String::new(), 75_000), (4, "c".to_owned(), 30_000), (2, "a b".to_owned(), 0)]);
    let messages: Vec<_> = log.iter().map(|entry| entry.message.as_deref()).collect();
    assert_eq!(messages, [None, None, Some("two tensors")]);
    for entry in &log {
        assert_eq!(store.at(entry.generation).unwrap().time(), entry.time);
    }
    // A tag of the newest adds no line.
    store.tag("newest").unwrap();
    assert_eq!(store.log().unwrap().len(), 4, "the tag is a commit of its own");
}

#[test]
fn retention_removes_the_others_in_one_commit() {
    let (_dir, _, store) = new_fast_store();
    for step in 0..6 {
        save_tagged(&store, "x", &filled(100, step as i64), &format!("step{step}"));
    }
    store.tag("keep me").unwrap();
    let before = store.generation();
    let last = Retention { keep_last: Some(2), ..Retention::default() };
    let removed = store.retain(&last, |name| name.starts_with("step")).unwrap();
    let removed: Vec<_> = removed.into_iter().map(|tag| tag.name).collect();
    assert_eq!(removed, ["step0", "step1", "step2", "step3"]);
    assert_eq!(tag_names(&store), ["step4", "keep me", "step5"]);
    assert_eq!(store.generation(), before + 1);
    let again = store.retain(&last, |name| name.starts_with("step")).unwrap();
    assert!(again.is_empty());
    let within = Retention { keep_within: Some(Duration::from_secs(3600)), ..Retention::default() };
    assert!(store.retain(&within, |_| true).unwrap().is_empty());
    let refused = store.retain(&Retention::default(), |_| true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        refused.to_string(),
        "retain: the policy has no rule; say which tags to keep, or remove tags by name"
    );
    assert_eq!(tag_names(&store).len(), 3);
}

#[test]
fn concurrent_changes_of_one_tag_are_not_lost() {
    let (_dir, _, store) = new_fast_store();
    save_tagged(&store, "x", &filled(1, 1i64), "v1");
    let (mut first, mut second) = (store.begin().unwrap(), store.begin().unwrap());
    first.tag("v2").unwrap();
    second.tag("v2").unwrap();
    first.commit().unwrap();
    let refused = second.commit();
    assert_refused(
        refused,
        ErrorKind::NameExists,
        &["another commit, generation 3, came before", "tag \"v2\""],
    );
    let (mut first, mut second) = (store.begin().unwrap(), store.begin().unwrap());
    first.untag("v1").unwrap();
    second.untag("v1").unwrap();
    first.commit().unwrap();
    assert_refused(second.commit(), ErrorKind::Conflict, &["another commit", "remove \"v1\": no tag"]);
    assert_eq!(tag_names(&store), ["v2"]);
}

#[test]
fn replaced_store_is_noticed() {
    let (_dir, path, store) = new_fast_store();
    save_tagged(&store, "x", &filled(1, 1i64), "v1");
    std::fs::remove_dir_all(&path).unwrap();
    save_tagged(&fast().create(&path).unwrap(), "x", &filled(1, 2i64), "v1");
    assert_refused(store.at("v1"), ErrorKind::Stale, &["deleted or replaced"]);
    assert_refused(store.tags(), ErrorKind::Stale, &["deleted or replaced"]);
    assert_refused(store.log(), ErrorKind::Stale, &["deleted or replaced"]);
    assert_refused(store.freed_without(&["v1"]), ErrorKind::Stale, &["deleted or replaced"]);
    assert_refused(store.tag("v2"), ErrorKind::Stale, &["deleted or replaced"]);
}

#[test]
fn store_of_many_tags_finds_each() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    for step in 0..300i64 {
        save_tagged(&store, "x", &filled(1, step), &format!("step{step:03}"));
    }
    assert!(!super::files(&path, "meta", "his").is_empty(), "the tags are in a table");
    let reader = Store::open(&path).unwrap();
    for step in (0..300).step_by(17) {
        assert_eq!(first_of(&reader, &format!("step{step:03}"), "x"), step);
    }
    assert_refused(reader.at("step300"), ErrorKind::NameNotFound, &["did you mean"]);
    let removed =
        store.retain(&Retention { keep_every: Some(100), ..Retention::default() }, |_| true).unwrap();
    assert_eq!((removed.len(), tag_names(&store).len()), (296, 4));
    drop(reader);
    store.gc().unwrap();
    assert_eq!(super::files(&path, "generations", "man").len(), 4);
    assert_eq!(super::files(&path, "storages", "bin").len(), 4);
    assert!(store.verify(|_| ()).unwrap().is_whole());
}
