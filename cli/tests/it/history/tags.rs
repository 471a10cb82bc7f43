//! Making, listing and removing tags, and what they hold.

use std::fs;

use serde_json::{Value, json};
use stridemap::{StorageKind, Transaction};

use super::{LEN, lines, with_tags};
use crate::harness::Dir;

#[test]
fn tag_is_made_listed_replaced_and_removed() {
    let dir = Dir::with_store();
    assert_eq!(
        dir.messages(&["tag", "s.smap", "v1", "-m", "the first"]),
        "stridemap: tagged generation 2 as v1: generation 3\n"
    );
    assert_eq!(
        dir.refusal(&["tag", "s.smap", "v1"]),
        "tag \"v1\": the tag exists, and names generation 2; choose a different name, remove that tag first, or give \
         --force"
    );
    assert_eq!(
        dir.messages(&["tag", "s.smap", "v1", "--force"]),
        "stridemap: tagged generation 3 as v1, no longer generation 2: generation 4\n"
    );
    dir.messages(&["tag", "s.smap", "also v1", "--at", "v1"]);
    let tags = lines(&dir, &["tag", "s.smap"]);
    let of = |tag: &Value| (tag["v"].clone(), tag["name"].clone(), tag["generation"].clone());
    assert_eq!(
        tags.iter().map(of).collect::<Vec<_>>(),
        [(json!(1), json!("also v1"), json!(3)), (json!(1), json!("v1"), json!(3))]
    );
    let time = tags[0]["time"].as_str().unwrap();
    assert!(time.len() == 30 && time.ends_with('Z') && time.contains('T'), "{time}");
    let listed = dir.stdout(&["tag", "s.smap"]);
    let columns: Vec<&str> = listed.lines().next().unwrap().split('\t').collect();
    // The message is that of the tag which generation 2 had.
    assert_eq!(columns, ["also v1", "3", time, ""]);

    assert_eq!(dir.stdout(&["tag", "-d", "s.smap", "v1", "-n"]).lines().last().unwrap(), "would free 0 B");
    assert_eq!(
        dir.messages(&["tag", "-d", "s.smap", "v1", "also v1"]),
        "stridemap: removed 2 tags: generation 6\n"
    );
    assert_eq!(dir.stdout(&["tag", "s.smap"]), "");
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}

#[test]
fn dry_run_of_a_tag_changes_nothing() {
    let dir = Dir::with_store();
    assert_eq!(dir.stdout(&["tag", "s.smap", "v1", "-n"]), "would tag generation 2 as v1\n");
    assert_eq!(dir.stdout(&["tag", "s.smap"]), "");
}

#[test]
fn tag_that_is_removed_frees_what_only_it_kept() {
    let dir = with_tags();
    let said = dir.stdout(&["tag", "-d", "s.smap", "v1", "-n"]);
    assert!(
        said.starts_with("would remove v1, generation 3, ") && said.ends_with("would free 19.53 KiB\n"),
        "{said}"
    );
    assert_eq!(
        dir.messages(&["tag", "-d", "s.smap", "v1"]),
        "stridemap: removed v1, freed 19.53 KiB: generation 7\n"
    );
    assert_eq!(dir.store().at("v2").unwrap().load("a").unwrap().get::<u8>(&[0]).unwrap(), 3);
}

#[test]
fn unknown_tag_is_refused_with_those_that_there_are() {
    let dir = with_tags();
    let there = "no tag is named \"v3\"; the tags of s.smap are v2, v1";
    for args in [
        &["ls", "s.smap@v3"][..],
        &["export", "s.smap@v3", "x.npz"],
        &["verify", "s.smap@v3"],
        &["du", "s.smap@v3"],
        &["restore", "s.smap", "v3"],
        &["tag", "s.smap", "new", "--at", "v3"],
        &["tag", "-d", "s.smap", "v1", "v3"],
    ] {
        assert_eq!(dir.refusal(args), there, "{args:?}");
    }
    let none = Dir::with_store();
    assert_eq!(none.refusal(&["ls", "s.smap@v1"]), "no tag is named \"v1\"; s.smap has no tags");
    let store = none.store();
    let tag = |txn: &mut Transaction<'_>| (0..12).try_for_each(|i| txn.tag(&format!("t{i:02}")));
    store.write(tag).unwrap();
    let refusal = none.refusal(&["ls", "s.smap@v1"]);
    assert!(refusal.ends_with("t02 and 2 more tags; stridemap tag s.smap lists them"), "{refusal}");
}

#[test]
fn tag_says_which_tensors_still_change() {
    let dir = Dir::with_store();
    dir.store().write(|txn| txn.save_as("counter", &0i64, StorageKind::Mutable)).unwrap();
    assert_eq!(
        dir.messages(&["tag", "s.smap", "v1"]),
        "stridemap: tagged generation 3 as v1: generation 4\nstridemap: note: 1 tensor is mutable or live, such as \
         counter: the tag does not keep their elements, which change in place\n"
    );
}

#[test]
fn du_shows_what_tags_hold_and_what_one_of_them_has() {
    let dir = with_tags();
    let usage = dir.json(&["du", "s.smap"]);
    assert_eq!((&usage["reachable_bytes"], &usage["held_bytes"]), (&json!(1), &json!(0)));
    let sum: u64 = ["reachable_bytes", "tagged_bytes", "held_bytes", "reclaimable_bytes", "metadata_bytes"]
        .iter()
        .map(|key| usage[key].as_u64().unwrap())
        .sum();
    assert_eq!(json!(sum), usage["folder_bytes"]);
    // Three storages of 10,000 bytes, and what is left of the manifests.
    assert!((30_000..40_000).contains(&usage["tagged_bytes"].as_u64().unwrap()), "{usage}");
    assert!(dir.on_terminal(120, &["du", "-v", "s.smap"]).contains("generation 3 is tagged"));
    assert_eq!(
        dir.json(&["du", "s.smap@v1"]),
        json!({ "v": 1, "generation": 3, "storage_bytes": 20_000, "own_bytes": 20_000, "external_bytes": 0 })
    );
    assert_eq!(dir.stdout(&["du", "s.smap@v2"]), "generation\t5\nstorages\t10001\nown\t10000\n");
    assert_eq!(dir.stdout(&["du", "s.smap@v1", "a"]), "a\t1\t10000\t0\n");
    // Nothing but a reader keeps generation 6, and no log has it.
    let reader = dir.store();
    dir.messages(&["attr", "set", "s.smap", "step", "3"]);
    assert_eq!(dir.stdout(&["du", "s.smap@6"]), "generation\t6\nstorages\t1\n");
    assert_eq!(dir.json(&["du", "s.smap@6"])["own_bytes"], Value::Null);
    drop(reader);
}

#[test]
fn damage_to_what_only_a_tag_needs_names_the_tag() {
    let dir = with_tags();
    let storage = dir.store().at("v1").unwrap().load("b").unwrap().storage_id().unwrap();
    fs::write(dir.path(format!("s.smap/storages/{storage:016x}.bin")), vec![9; LEN]).unwrap();
    let run = dir.run(&["verify", "s.smap"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("tags that lose something: v1"), "{run:?}");
    let run = dir.run(&["verify", "s.smap", "--json"]);
    let record: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(record["findings"][0]["tags"], json!(["v1"]));
    assert_eq!(dir.run(&["verify", "s.smap@v1"]).code, Some(1));
    assert_eq!(dir.stdout(&["verify", "s.smap@v2"]), "ok\n");
}

#[test]
fn verify_of_a_tag_reports_damage_to_its_manifest() {
    let dir = with_tags();
    dir.flip("s.smap/generations/0000000000000003.man", 40);
    let run = dir.run(&["verify", "s.smap@v1"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), ""), "{run:?}");
    assert!(run.stdout.contains("generations/0000000000000003.man") && run.stdout.contains("v1"), "{run:?}");
    assert_eq!(dir.stdout(&["verify", "s.smap@v2"]), "ok\n");
}

#[test]
fn tag_that_is_replaced_says_what_that_frees() {
    let dir = with_tags();
    assert_eq!(
        dir.stdout(&["tag", "s.smap", "v1", "--force", "-n"]),
        "would tag generation 6 as v1, no longer generation 3\nwould free 19.53 KiB\n"
    );
    assert_eq!(
        dir.messages(&["tag", "s.smap", "v1", "--force"]),
        "stridemap: tagged generation 6 as v1, no longer generation 3, freed 19.53 KiB: generation 7\n"
    );
    assert_eq!(
        dir.stdout(&["tag", "s.smap", "v1", "--at", "v1", "--force", "-n"]),
        "would tag generation 6 as v1\n"
    );
}

#[test]
fn what_a_removed_tag_kept_and_is_not_freed_yet_is_said() {
    let dir = with_tags();
    // A reader holds it.
    let held = dir.store().at("v1").unwrap();
    let said = dir.messages(&["tag", "-d", "s.smap", "v1"]);
    let readers = format!("held by readers on older generations (process {})", std::process::id());
    assert!(said.starts_with("stridemap: removed v1: generation 7\n") && said.contains(&readers), "{said}");
    drop(held);
    dir.stdout(&["compact", "s.smap"]);

    // A storage that was restored after a generation without it.
    let dir = with_tags();
    dir.messages(&["restore", "s.smap", "v1", "b"]);
    dir.messages(&["rm", "s.smap", "b"]);
    let said = dir.messages(&["tag", "-d", "s.smap", "v1"]);
    assert_eq!(
        said,
        "stridemap: removed v1, freed 9.77 KiB: generation 9\nstridemap: note: stridemap compact s.smap frees 9.77 KiB more\n"
    );
    dir.stdout(&["compact", "s.smap"]);
    assert_eq!(dir.json(&["du", "s.smap"])["reclaimable_bytes"], json!(0));

    // All of them.
    let dir = with_tags();
    dir.messages(&["restore", "s.smap", "v1", "--force"]);
    dir.messages(&["rm", "s.smap", "a", "b"]);
    assert_eq!(
        dir.messages(&["tag", "-d", "s.smap", "v1"]),
        "stridemap: removed v1: generation 9\nstridemap: note: stridemap compact s.smap frees 19.53 KiB\n"
    );
}

#[test]
fn salvage_leaves_tags_out_and_says_how_to_keep_them() {
    let dir = with_tags();
    let run = dir.run(&["salvage", "s.smap", "new.smap"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), "left out: tag v1\nleft out: tag v2\n"), "{run:?}");
    assert_eq!(
        run.stderr,
        "stridemap: salvaged 1 tensor of generation 6 into new.smap; nothing is lost\nstridemap: note: a salvage copies one \
         generation, so 2 tags are left out, damaged or not; to keep the generation of one: stridemap export s.smap@v1 NEW.smap; \
         to keep all, if the newest generation is whole: remove the damaged tags, stridemap tag -d s.smap TAG, then \
         stridemap export --tags s.smap NEW.smap\n"
    );
    let run = dir.run(&["salvage", "s.smap", "-n", "--json"]);
    let record: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&record["tags"], &record["losses"]), (&json!(["v1", "v2"]), &json!([])));
    assert_eq!(
        dir.refusal(&["salvage", "s.smap@v1", "other.smap"]),
        "salvage s.smap@v1: salvage takes a store, not a tag; name s.smap, or copy the tagged generation, if it is whole: \
         stridemap export s.smap@v1 other.smap"
    );
    // The commands that are named keep what is whole.
    let storage = dir.store().at("v1").unwrap().load("b").unwrap().storage_id().unwrap();
    fs::write(dir.path(format!("s.smap/storages/{storage:016x}.bin")), vec![9; LEN]).unwrap();
    assert_eq!(dir.run(&["export", "s.smap@v2", "v2.smap"]).code, Some(0));
    dir.messages(&["tag", "-d", "s.smap", "v1"]);
    assert_eq!(dir.run(&["export", "--tags", "s.smap", "all.smap"]).code, Some(0));
    assert_eq!(dir.stdout(&["ls", "all.smap@v2"]), "a\nc\n");
}

#[test]
fn last_tag_of_tensors_that_share_a_storage_with_others_leaves_bytes_to_compact() {
    let dir = Dir::empty();
    let header = r#"{"p":{"dtype":"U8","shape":[9000],"data_offsets":[0,9000]},"q":{"dtype":"U8","shape":[9000],"data_offsets":[9000,18000]}}"#;
    dir.write_safetensors("m.safetensors", header, &[1; 18_000]);
    dir.messages(&["import", "m.safetensors", "s.smap"]);
    dir.messages(&["tag", "s.smap", "v1"]);
    dir.messages(&["rm", "s.smap", "p"]);
    let said = dir.messages(&["tag", "-d", "s.smap", "v1"]);
    assert!(
        said.ends_with(
            "stridemap: note: 8.81 KiB are now unused, but remain in storages of other tensors, such as q; free them with \
             stridemap compact s.smap\n"
        ),
        "{said}"
    );
    dir.stdout(&["compact", "s.smap"]);
    assert_eq!(dir.json(&["du", "s.smap"])["reclaimable_bytes"], json!(0));
}
