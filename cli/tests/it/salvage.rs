//! The `salvage` command, and `verify` on damaged stores.

use std::fs;

use serde_json::{Value, json};
use stridemap::{Store, Tensor};

use crate::harness::{Dir, Run};

/// Creates a store of `weight` and a view of it on one storage, and of `bias` on another.
fn with_model() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("model.smap")).unwrap();
    let weight = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], &[2, 3]).unwrap();
    store.save("weight", &weight).unwrap();
    store.save_view("weight_t", &store.load("weight").unwrap().t().unwrap()).unwrap();
    store.save("bias", &Tensor::from_vec(vec![1f32, 2., 3.], &[3]).unwrap()).unwrap();
    drop(store);
    // Until it calls `exec`, a process started by another test has our open files, and so our locks.
    dir.stdout(&["compact", "model.smap"]);
    dir
}

fn json(dir: &Dir, args: &[&str], code: i32) -> Value {
    let run = dir.run(args);
    assert_eq!(run.code, Some(code), "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn verify_json_has_the_findings_and_the_affected_tensors() {
    let dir = with_model();
    let whole = json(&dir, &["verify", "model.smap", "--json"], 0);
    assert_eq!(
        whole,
        json!({"v": 1, "findings": [], "interrupted": [], "orphans": [], "unchecked": [], "bytes_read": 36})
    );
    dir.flip("model.smap/storages/0000000000000001.bin", 5);
    dir.write("model.smap/storages/00000000000000ff.bin", b"orphan");
    let damaged = json(&dir, &["verify", "model.smap", "--json"], 1);
    let finding = json!({
        "file": "model.smap/storages/0000000000000001.bin",
        "offset": 0,
        "rule": "F-25",
        "rule_text": "sealed bytes have the digests that their record states",
        "detail": "the 24-byte chunk starting here was changed",
        "affects": ["weight", "weight_t"],
        "affects_more": 0,
        "tags": [],
    });
    assert_eq!(damaged["findings"], json!([finding]));
    let orphan = &damaged["orphans"][0];
    assert_eq!((&orphan["bytes"], &orphan["reason"]), (&json!(6), &json!("garbage")), "{damaged}");
    let named = json(&dir, &["verify", "model.smap", "bias", "--json"], 0);
    assert_eq!(named["bytes_read"], 12, "{named}");
    dir.flip("model.smap/FORMAT", 20);
    let lost = json(&dir, &["verify", "model.smap", "--json"], 1);
    assert_eq!(lost["findings"][0]["affects"], "all");
}

#[test]
fn salvage_json_has_the_losses_and_what_was_copied() {
    let dir = with_model();
    dir.flip("model.smap/storages/0000000000000001.bin", 5);
    let loss = |name: &str| {
        json!({
            "name": name,
            "bytes": 24,
            "file": "model.smap/storages/0000000000000001.bin",
            "reason": "elements have been changed since they were saved",
        })
    };
    let losses = json!([loss("weight"), loss("weight_t")]);
    let plan = json(&dir, &["salvage", "model.smap", "-n", "--json"], 1);
    assert_eq!(
        plan,
        json!({
            "v": 1,
            "generation": 4,
            "tensor_count": 1,
            "bytes_copied": 0,
            "bytes_shared": 0,
            "losses": losses,
            "tags": [],
            "interrupted": [],
        })
    );
    assert_eq!(json(&dir, &["salvage", "model.smap", "new.smap", "-n", "--json"], 1), plan);
    assert!(!dir.path("new.smap").exists());
    let done = json(&dir, &["salvage", "model.smap", "new.smap", "--json"], 1);
    assert_eq!((&done["losses"], &done["tensor_count"]), (&losses, &json!(1)));
    assert_eq!(done["bytes_copied"].as_u64().unwrap() + done["bytes_shared"].as_u64().unwrap(), 12);
    assert_eq!(dir.stdout(&["ls", "new.smap"]), "bias\n");
    json(&dir, &["verify", "new.smap", "--json"], 0);
    let metadata = dir.path("model.smap/meta/0000000000000004.man");
    fs::write(metadata, "damaged").unwrap();
    let line = dir.refusal(&["salvage", "model.smap", "other.smap", "--json"]);
    assert!(line.contains("no manifest can be read"), "{line}");
    assert!(!dir.path("other.smap").exists());
}

#[test]
fn salvage_says_what_is_lost_and_exits_with_0_only_if_nothing_is() {
    let dir = with_model();
    let Run { code, stdout, stderr } = dir.run(&["salvage", "model.smap", "-n"]);
    let line = "stridemap: 3 tensors of generation 4 can be salvaged; nothing is lost\n";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "", line));
    let Run { code, stdout, stderr } = dir.run(&["salvage", "model.smap", "new.smap"]);
    let line = "stridemap: salvaged 3 tensors of generation 4 into new.smap; nothing is lost\n";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "", line));
    dir.flip("model.smap/storages/0000000000000002.bin", 5);
    let Run { code, stdout, stderr } = dir.run(&["salvage", "model.smap", "newer.smap"]);
    assert_eq!((code, stdout.lines().count()), (Some(1), 1), "{stdout}");
    assert!(stdout.starts_with("lost: \"bias\": 12 bytes: model.smap/storages/"), "{stdout}");
    assert!(stderr.ends_with("into newer.smap; 1 tensor, 12 B, lost\n"), "{stderr}");
    for (args, why) in [
        (&["salvage", "model.smap", "new.smap"][..], "already exists"),
        (&["salvage", "model.smap", "model.smap/new.smap"], "inside a store"),
        (&["salvage", "model.smap", "none/new.smap"], "does not exist"),
        (&["salvage", "none.smap", "x.smap"], "none.smap"),
    ] {
        let line = dir.refusal(args);
        assert!(line.contains(why), "{args:?}: {line}");
    }
    let Run { code, stderr, .. } = dir.run(&["salvage", "model.smap"]);
    assert_eq!(code, Some(2), "{stderr}");
    let line = dir.refusal(&["verify", "model.smap", "biased"]);
    assert!(line.contains("did you mean \"bias\""), "{line}");
}
