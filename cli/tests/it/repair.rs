//! The `repair` command, and `verify` on damaged stores.

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
    dir.stdout(&["gc", "model.smap"]);
    dir
}

fn damage(dir: &Dir, file: &str, at: usize) {
    let path = dir.path("model.smap").join(file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
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
    assert_eq!(whole, json!({"v": 1, "findings": [], "orphans": [], "unchecked": [], "bytes_read": 36}));
    damage(&dir, "storages/0000000000000001.bin", 5);
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
    });
    assert_eq!(damaged["findings"], json!([finding]));
    let orphan = &damaged["orphans"][0];
    assert_eq!((&orphan["bytes"], &orphan["reason"]), (&json!(6), &json!("garbage")), "{damaged}");
    let named = json(&dir, &["verify", "model.smap", "bias", "--json"], 0);
    assert_eq!(named["bytes_read"], 12, "{named}");
    damage(&dir, "FORMAT", 20);
    let lost = json(&dir, &["verify", "model.smap", "--json"], 1);
    assert_eq!(lost["findings"][0]["affects"], "all");
}

#[test]
fn repair_json_has_the_losses_and_the_actions() {
    let dir = with_model();
    damage(&dir, "storages/0000000000000001.bin", 5);
    let plan = json(&dir, &["repair", "model.smap", "--json"], 1);
    assert_eq!((&plan["applied"], &plan["generation"]), (&json!(false), &Value::Null), "{plan}");
    assert_eq!(plan["losses"][0]["names"], json!(["weight", "weight_t"]));
    assert!(!dir.path("model.smap/lost+found").exists());
    let done = json(&dir, &["repair", "model.smap", "--apply", "--json"], 0);
    assert_eq!((&done["applied"], &done["generation"]), (&json!(true), &json!(5)), "{done}");
    assert_eq!(done["losses"], plan["losses"]);
    for path in done["kept"].as_array().unwrap() {
        assert!(dir.path(path.as_str().unwrap()).exists(), "{path}");
    }
    let again = json(&dir, &["repair", "model.smap", "--apply", "--json"], 0);
    assert_eq!((&again["applied"], &again["remedies"]), (&json!(false), &json!([])), "{again}");
}

#[test]
fn repair_of_an_intact_store_reports_that() {
    let dir = with_model();
    for args in [&["repair", "model.smap"][..], &["repair", "model.smap", "--apply"]] {
        let Run { code, stdout, stderr } = dir.run(args);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "nothing to repair\n", ""));
    }
    let line = dir.refusal(&["verify", "model.smap", "biased"]);
    assert!(line.contains("did you mean \"bias\""), "{line}");
}
