//! The `compact` and `du` commands.

use std::fs;

use serde_json::{Value, json};
use stridemap::{Store, Tensor};

use crate::harness::Dir;

/// Creates a store of one column of a float32 matrix with 1000 rows and 100 columns. The matrix has lost its own name.
fn with_column() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let elements: Vec<f32> = (0..100_000u32).map(|i| i as f32).collect();
    store.save("all", &Tensor::from_vec(elements, &[1000, 100]).unwrap()).unwrap();
    store.save_view("a column", &store.load("all").unwrap().select(1, 16).unwrap()).unwrap();
    store.remove("all").unwrap();
    // Deletes what the store's own commit may have left: a process started by another test briefly has our locks.
    store.gc().unwrap();
    dir
}

#[test]
fn compact_reports_the_freed_bytes_and_keeps_the_elements() {
    let dir = with_column();
    let before = dir.stdout(&["show", "s.smap", "a column"]);
    dir.write("s.smap/storages/00000000000000ff.bin", &[0; 1000]);
    assert_eq!(
        dir.stdout(&["compact", "s.smap"]),
        "deleted 1 file, 1000 bytes\ncompacted 1 storage: 390.62 KiB, now 3.91 KiB\n"
    );
    assert_eq!(dir.stdout(&["show", "s.smap", "a column"]), before);
    assert_eq!(fs::metadata(dir.path("s.smap/storages/0000000000000002.bin")).unwrap().len(), 4000);
    assert_eq!(dir.stdout(&["compact", "s.smap"]), "nothing to compact\n");
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}

#[test]
fn compact_dry_run_says_what_compact_does_and_changes_nothing() {
    let dir = with_column();
    dir.write("s.smap/storages/00000000000000ff.bin", &[0; 1000]);
    let files = || {
        let files =
            ["", "meta", "generations", "storages"].map(|part| fs::read_dir(dir.path("s.smap").join(part)));
        let described = |entry: Result<fs::DirEntry, std::io::Error>| {
            let entry = entry.unwrap();
            (entry.path(), entry.metadata().unwrap().len(), entry.metadata().unwrap().modified().unwrap())
        };
        let mut files: Vec<_> = files.into_iter().flat_map(|dir| dir.unwrap()).map(described).collect();
        files.sort();
        files
    };
    let before = files();
    assert_eq!(
        dir.stdout(&["compact", "-n", "s.smap"]),
        "would delete 1 file, 1000 bytes\nwould compact 1 storage: 390.62 KiB, then 3.91 KiB\n"
    );
    let planned = dir.json(&["compact", "s.smap", "-n"]);
    assert_eq!(files(), before);
    let mut done = dir.json(&["compact", "s.smap"]);
    assert_eq!(done["is_dry_run"], json!(false));
    done["is_dry_run"] = json!(true);
    assert_eq!(planned, done);
    assert_eq!(dir.stdout(&["compact", "-n", "s.smap"]), "nothing to compact\n");
}

#[test]
fn compact_skips_and_reports_damaged_storages_and_exits_with_1() {
    let dir = with_column();
    dir.flip("s.smap/storages/0000000000000001.bin", 5000);
    let run = dir.run(&["compact", "s.smap"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
    let message = "stridemap: skipped storage 0000000000000001 (386.72 KiB reclaimable): damaged: ";
    assert!(run.stderr.starts_with(message), "{run:?}");
}

#[test]
fn compact_json_has_what_was_freed_and_what_was_skipped() {
    let dir = with_column();
    dir.write("s.smap/storages/00000000000000ff.bin", &[0; 1000]);
    let record = dir.json(&["compact", "s.smap"]);
    let expected = json!({
        "v": 1, "is_dry_run": false, "materialized_storage_count": 0, "materialized_bytes": 0, "compacted_storage_count": 1,
        "new_storage_count": 1, "before_bytes": 400_000, "after_bytes": 4000, "deleted_file_count": 1,
        "deleted_bytes": 1000, "held_bytes": 0, "held_by": [], "skipped": [],
    });
    assert_eq!(record, expected);

    let dir = with_column();
    dir.write("s.smap/storages/0000000000000001.bin", &vec![1; 400_000]);
    let run = dir.run(&["compact", "s.smap", "--json"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), ""));
    let record: Value = serde_json::from_str(&run.stdout).unwrap();
    let skipped = &record["skipped"][0];
    assert_eq!((&skipped["storage"], &skipped["is_damaged"]), (&json!("0000000000000001"), &json!(true)));
    assert!(skipped["reason"].as_str().unwrap().starts_with("damaged: "), "{record}");
}

#[test]
fn du_prints_five_numbers_that_add_up_to_the_folder() {
    let dir = with_column();
    dir.write("s.smap/storages/00000000000000ff.bin", &[0; 1000]);
    dir.write("s.smap/notes.txt", &[0; 77]);
    let piped = dir.stdout(&["du", "s.smap"]);
    let labels: Vec<&str> = piped.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(labels, ["generation", "reachable", "tagged", "held", "reclaimable", "metadata", "folder"]);
    let number = |label: &str| -> u64 {
        let line = piped.lines().find_map(|line| line.strip_prefix(label)).unwrap();
        line.trim().parse().unwrap()
    };
    assert_eq!(["generation", "reachable", "held", "reclaimable"].map(number), [4, 4000, 0, 397_000]);
    let du = std::process::Command::new("du").arg("-sb").arg(dir.path("s.smap")).output().unwrap();
    let all: u64 = String::from_utf8(du.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!([4000 + 397_000 + number("metadata"), number("folder")], [all; 2]);
    let printed = dir.on_terminal(160, &["du", "s.smap"]);
    for line in [
        "generation   4",
        "reachable    3.91 KiB",
        "tagged       0 B",
        "held         0 B",
        "reclaimable  387.70 KiB",
    ] {
        assert!(printed.lines().any(|other| other == line), "{printed}");
    }

    // The files with bytes that are not needed.
    let printed = dir.on_terminal(160, &["du", "-v", "s.smap"]);
    let lines: Vec<&str> = printed.lines().skip_while(|line| !line.is_empty()).skip(1).collect();
    let words: Vec<String> =
        lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        words,
        [
            "file bytes not needed names why",
            "notes.txt 77 77 not a file of the store; nothing deletes it",
            "storages/0000000000000001.bin 400000 396000 a column unreferenced bytes; compact frees them",
            "storages/00000000000000ff.bin 1000 1000 nothing needs these bytes; gc frees them",
        ]
    );

    let record = dir.json(&["du", "s.smap"]);
    assert_eq!((&record["v"], &record["generation"]), (&json!(1), &json!(4)));
    assert_eq!((&record["reachable_bytes"], &record["reclaimable_bytes"]), (&json!(4000), &json!(397_000)));
    assert_eq!((&record["folder_bytes"], &record["external_bytes"]), (&json!(all), &json!(0)));
    assert_eq!(
        record["files"][1],
        json!({
            "file": "storages/0000000000000001.bin", "bytes": 400_000, "spare_bytes": 396_000,
            "reason": "unreached", "generation": null, "processes": [], "storage": "0000000000000001",
            "names": ["a column"],
        })
    );
}

#[test]
fn du_names_the_process_that_holds_space() {
    let dir = with_column();
    let reader = Store::open(dir.path("s.smap")).unwrap();
    let held = " are held by readers on older generations (process";
    let message = dir.run(&["compact", "s.smap"]).stderr;
    assert!(message.contains(held), "{message}");
    let record = dir.json(&["du", "s.smap"]);
    let files = record["files"].as_array().unwrap();
    let pinned = files.iter().find(|file| file["file"] == json!("storages/0000000000000001.bin")).unwrap();
    assert_eq!((&pinned["reason"], &pinned["generation"]), (&json!("pinned"), &json!(4)));
    // The kernel names the process if the file system and the process namespace allow it.
    let processes = pinned["processes"].as_array().unwrap();
    assert!(processes.is_empty() || *processes == [json!(std::process::id())], "{record}");
    let held_bytes = record["held_bytes"].as_u64().unwrap();
    assert!((400_000..410_000).contains(&held_bytes), "{record}");
    assert_eq!(record["reclaimable_bytes"], json!(0));
    drop(reader);
    dir.store().gc().unwrap();
    let text = dir.stdout(&["du", "s.smap"]);
    assert!(text.contains("held\t0\nreclaimable\t0\n"), "{text}");
}

#[test]
fn du_of_a_prefix_counts_shared_bytes_once_and_apart() {
    let dir = Dir::with_store();
    let points = dir.store().load("points").unwrap();
    dir.store().save_view("points.row", &points.select(0, 0).unwrap()).unwrap();
    let parts = dir.stdout(&["du", "s.smap", "points.", "points*", "'odd [name]'"]);
    // Removing all of them leaves nothing in the file.
    assert_eq!(
        parts,
        "points.\t1\t8\t8\t0\t0\t0\npoints*\t3\t24\t0\t0\t64\t0\n'odd [name]'\t1\t8\t0\t0\t48\t0\ntotal\t4\t32\t0\t72\t0\t0\n"
    );
    let total = dir.json(&["du", "s.smap", "points", "points_t", "points.row"])["total"].clone();
    let expected = json!({ "tensor_count": 3, "reachable_bytes": 24, "shared_bytes": 0, "freed_bytes": 0,
            "compact_bytes": 64, "tagged_bytes": 0 });
    assert_eq!(total, expected);
    let would = dir.stdout(&["rm", "-n", "s.smap", "points", "points_t", "points.row"]);
    assert!(would.contains("would free 64 B after compact"), "{would}");
    let json = dir.json(&["du", "s.smap", "points_t"]);
    let expected = json!({ "pattern": "points_t", "tensor_count": 1, "reachable_bytes": 24, "shared_bytes": 24,
            "freed_bytes": 0, "compact_bytes": 0, "tagged_bytes": 0 });
    assert_eq!(json["patterns"], json!([expected]));
    let missing = dir.run(&["du", "s.smap", "points.", "x*"]);
    assert_eq!(
        (missing.code, missing.stderr.as_str()),
        (Some(1), "stridemap: du: no tensor matches \"x*\"\n")
    );
}

#[test]
fn compact_says_why_it_rewrites_nothing() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let save = |txn: &mut stridemap::Transaction<'_>| {
        txn.save("large", &Tensor::from_vec(vec![1u8; 100_000], &[100_000])?)?;
        txn.save("small", &Tensor::from_vec(vec![1u8; 10_000], &[10_000])?)
    };
    store.write(save).unwrap();
    drop(store);
    assert_eq!(
        dir.messages(&["rm", "s.smap", "small"]),
        "stridemap: removed small: generation 3\nstridemap: note: no tag keeps it, so it cannot be brought back; --tag NAME tags \
         the state before a change\nstridemap: note: 9.80 KiB are now unused, but remain in storages of \
         other tensors, such as large; free them with stridemap compact --all s.smap\n"
    );
    let run = dir.run(&["compact", "s.smap"]);
    assert!(run.stdout.ends_with("nothing to compact\n"), "{run:?}");
    assert!(run.stderr.contains(" are unreachable in storages that were not rewritten"), "{run:?}");
    assert!(
        run.stderr.ends_with("less than a quarter of each, or less than 4 KiB; free them with --all\n"),
        "{run:?}"
    );
    assert!(dir.stdout(&["compact", "s.smap", "--all"]).contains("compacted 1 storage: 107."));
    assert!(dir.stdout(&["du", "s.smap"]).contains("reclaimable\t0\n"));
    assert_eq!(dir.stdout(&["compact", "s.smap", "--all"]), "nothing to compact\n");
}
