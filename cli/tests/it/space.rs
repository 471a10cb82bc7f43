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
    drop(store);
    // Deletes what the store's own commit may have left: a process started by another test briefly has our locks.
    dir.stdout(&["gc", "s.smap"]);
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
fn compact_skips_and_reports_damaged_storages_and_exits_with_1() {
    let dir = with_column();
    let storage = dir.path("s.smap/storages/0000000000000001.bin");
    let mut bytes = fs::read(&storage).unwrap();
    bytes[5000] ^= 1;
    fs::write(&storage, bytes).unwrap();
    let run = dir.run(&["compact", "s.smap"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
    let message = "stridemap: skipped storage 0000000000000001 (386.72 KiB reclaimable): damaged: ";
    assert!(run.stderr.starts_with(message), "{run:?}");
}

#[test]
fn compact_json_has_what_was_freed_and_what_was_skipped() {
    let dir = with_column();
    dir.write("s.smap/storages/00000000000000ff.bin", &[0; 1000]);
    let record: Value = serde_json::from_str(&dir.stdout(&["compact", "s.smap", "--json"])).unwrap();
    let expected = json!({
        "v": 1, "materialized_storage_count": 0, "materialized_bytes": 0, "compacted_storage_count": 1,
        "before_bytes": 400_000, "after_bytes": 4000, "deleted_file_count": 1, "deleted_bytes": 1000,
        "held_bytes": 0, "held_by": [], "skipped": [],
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
fn du_is_a_table_or_json() {
    let dir = with_column();
    dir.write("s.smap/storages/00000000000000ff.bin", &[0; 1000]);
    let piped = dir.stdout(&["du", "s.smap"]);
    for line in ["generation\t4", "reachable\t4000", "garbage\t1000", "reclaimable\t397000"] {
        assert!(piped.lines().any(|other| other == line), "{piped}");
    }
    let printed = dir.on_terminal(160, &["du", "s.smap"]);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "generation   4");
    for line in
        ["reachable    3.91 KiB", "unreachable  386.72 KiB", "garbage      1000 B", "reclaimable  387.70 KiB"]
    {
        assert!(lines.contains(&line), "{printed}");
    }
    let blank = lines.iter().position(|line| line.is_empty()).unwrap();
    let words: Vec<Vec<&str>> =
        lines[blank + 1..].iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0].join(" "), "file kind bytes reachable tensors names reclaimable why");
    assert_eq!(
        words[1].join(" "),
        "storages/0000000000000001.bin sealed 400000 4000 1 a column 396000 unreferenced bytes; compact frees them"
    );
    assert_eq!(
        words[2].join(" "),
        "storages/00000000000000ff.bin 1000 0 0 1000 left by an aborted commit; gc deletes it"
    );

    let record: Value = serde_json::from_str(&dir.stdout(&["du", "s.smap", "--json"])).unwrap();
    assert_eq!((&record["v"], &record["generation"]), (&json!(1), &json!(4)));
    assert_eq!((&record["reachable_bytes"], &record["reclaimable_bytes"]), (&json!(4000), &json!(397_000)));
    assert_eq!(
        record["storages"][0],
        json!({
            "id": "0000000000000001", "kind": "sealed", "file": "storages/0000000000000001.bin",
            "file_bytes": 400_000, "length_bytes": 400_000, "reachable_bytes": 4000,
            "padding_bytes": 0, "unreachable_bytes": 396_000, "digest_bytes": 0, "is_exact": true,
            "tensor_count": 1, "names": ["a column"],
            "reclaimable": [{ "bytes": 396_000, "reason": "unreached", "generation": null, "processes": [] }],
        })
    );
    assert_eq!(record["storages"][1]["kind"], json!(null));
    let du = std::process::Command::new("du").arg("-sb").arg(dir.path("s.smap")).output().unwrap();
    let all: u64 = String::from_utf8(du.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(record["folder_bytes"], json!(all));
    let parts = [
        "metadata",
        "digest",
        "reachable",
        "padding",
        "unreachable",
        "garbage",
        "staging",
        "lost_found",
        "other",
    ];
    let sum: u64 = parts.iter().map(|part| record[format!("{part}_bytes")].as_u64().unwrap()).sum();
    assert_eq!(sum, all);
}

#[test]
fn du_names_the_process_that_holds_space() {
    let dir = with_column();
    let reader = Store::open(dir.path("s.smap")).unwrap();
    let held = "390.62 KiB are held by readers on older generations (process";
    let message = dir.run(&["compact", "s.smap"]).stderr;
    assert!(message.contains(held), "{message}");
    let message = dir.run(&["gc", "s.smap"]).stderr;
    assert!(message.contains(held), "{message}");
    let record: Value = serde_json::from_str(&dir.stdout(&["du", "s.smap", "--json"])).unwrap();
    let pinned = &record["storages"][0]["reclaimable"][0];
    assert_eq!((&pinned["reason"], &pinned["generation"]), (&json!("pinned"), &json!(4)));
    // The kernel names the process if the file system and the process namespace allow it.
    let processes = pinned["processes"].as_array().unwrap();
    assert!(processes.is_empty() || *processes == [json!(std::process::id())], "{record}");
    assert_eq!(record["held_bytes"], record["storages"][0]["reclaimable"][0]["bytes"]);
    assert_eq!(record["reclaimable_bytes"], json!(0));
    dir.store().save("more", &[0u8; 1000]).unwrap();
    let held = dir.store().snapshot();
    dir.messages(&["rm", "s.smap", "*"]);
    let text = dir.stdout(&["du", "s.smap"]);
    assert!(text.contains("reclaimable\t0\nheld\t"), "{text}");
    assert!(text.contains("\n2 files\t\t"), "{text}");
    drop((reader, held));
    dir.stdout(&["gc", "s.smap"]);
    assert!(dir.stdout(&["du", "s.smap"]).contains("reclaimable\t0\n"));
}

#[test]
fn du_of_a_prefix_counts_shared_bytes_once_and_apart() {
    let dir = Dir::with_store();
    let points = dir.store().load("points").unwrap();
    dir.store().save_view("points.row", &points.select(0, 0).unwrap()).unwrap();
    let parts = dir.stdout(&["du", "s.smap", "points.", "points*", "'odd [name]'"]);
    assert_eq!(parts, "points.\t1\t8\t8\npoints*\t3\t24\t0\n'odd [name]'\t1\t8\t0\n");
    let json: Value = serde_json::from_str(&dir.stdout(&["du", "s.smap", "points_t", "--json"])).unwrap();
    let expected =
        json!({ "pattern": "points_t", "tensor_count": 1, "reachable_bytes": 24, "shared_bytes": 24 });
    assert_eq!(json["patterns"], json!([expected]));
    let missing = dir.run(&["du", "s.smap", "points.", "x*"]);
    assert_eq!(
        (missing.code, missing.stderr.as_str()),
        (Some(1), "stridemap: du: no tensor matches \"x*\"\n")
    );
}

#[test]
fn verbose_du_lists_every_storage() {
    let dir = Dir::with_store();
    let listed = |args: &[&str]| dir.stdout(args).matches("storages/").count();
    assert_eq!([listed(&["du", "s.smap"]), listed(&["du", "-v", "s.smap"])], [0, 1]);
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
        "stridemap: removed small: generation 3\nstridemap: note: 9.80 KiB are now unused, but remain in storages of \
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
